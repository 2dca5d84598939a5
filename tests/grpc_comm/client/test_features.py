"""A head on the client's side reads features that come over the wire: the text stays the target's
own whatever becomes of them, and a session that lacks some is sent them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.train_head import new_head, save_head, teach
from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.server.server import BackgroundServer
from inference.backends.eager import EagerModel
from inference.backends.eagle import EagleModel
from inference.backends.received_features import ReceivedFeatures
from inference.decode import Loop
from inference.draft_thread import inline
from inference.drafters.led_proposer import LedProposer
from inference.drafters.model_proposer import ROOM
from inference.engine.engine import Engine
from inference.engine.feature_feed import FeatureOffer
from inference.engine.local_session import LocalSession
from inference.errors import Mismatch
from inference.features import FeatureBlock, FeatureForm
from inference.model.eagle import load_head
from inference.order import Decode, End, Pace
from inference.planner.prices import Prices
from inference.sampling import SamplingParams
from outrider.link import shaped_link
from tests.support import heads, pairs
from tests.support.clock import Clock
from tests.support.drafts import knowledge, text_of
from tests.support.equality import NearTies, assert_same_text
from tests.support.wire_fixtures import WAIT, background, eventually, news, until_it_fails

TARGET, LENGTH, TOKENS = pairs.decoder(1), pairs.SEQUENCE_LENGTH, 24
PROMPT = pairs.prompt_of(20)
FORM = FeatureForm(heads.KEPT, TARGET.config.hidden_size)
SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)]


def giving(rows: int = 2) -> Engine:
    """An engine whose target gives features."""
    engine = pairs.engine(TARGET, rows)
    assert isinstance(engine.model, EagerModel)
    engine.model.keep_features(FORM.layers)
    engine.offer = FeatureOffer(engine.model, FORM, 10**7)
    return engine


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with background(giving()) as server:
        yield server


@pytest.fixture
def connection(server: BackgroundServer) -> Iterator[Connection]:
    with connect(str(server.address), timeout=WAIT) as connection:
        yield connection


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head."""
    raw, directory = heads.raw_config(TARGET.config), tmp_path_factory.mktemp("useless")
    return heads.write_head(directory, raw, heads.tensors_of(TARGET.config))


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that was taught what the target says after the prompt at temperature 0."""
    torch.manual_seed(0)
    head, directory = new_head(TARGET, heads.KEPT, 48, LENGTH), tmp_path_factory.mktemp("taught")
    text = torch.tensor([[*PROMPT, *own_text()]])
    list(teach(head, TARGET, repeat(text), steps=60, levels=2, rate=1e-2))
    save_head(head, directory)
    return directory


@cache
def own_text(tokens: int = TOKENS, params: SamplingParams = SAMPLINGS[0]) -> list[int]:
    """What the target says alone behind PROMPT."""
    session = LocalSession(pairs.engine(TARGET))
    return text_of(PROMPT, params, session, Decode(len(PROMPT) + tokens))


def received(form: FeatureForm = FORM) -> ReceivedFeatures:
    return ReceivedFeatures(form, LENGTH, 10**7)


def proposer_on(head: Path, features: ReceivedFeatures, clock: Clock) -> LedProposer:
    """A clock that stands still: no candidate is late."""
    model = EagleModel(
        load_head(head, TARGET, LENGTH), rows=1, capacity=LENGTH + ROOM, max_nodes=128
    )
    return LedProposer(model, 0, knowledge(), Prices(), features=features, clock=clock)


class Drafted:
    """A text with a head, forward by forward. `whole` waits for all features before each step."""

    def __init__(self, session: RemoteSession, proposer: LedProposer, *, whole: bool) -> None:
        self.session, self.features, self.whole = session, proposer.features, whole
        self.tokens, clock = list[int](), Clock()
        order = Decode(len(PROMPT) + TOKENS, pace=Pace.WAIT)
        self.loop = Loop(PROMPT, SAMPLINGS[0], session, order, inline([proposer]), clock)

    def step(self) -> None:
        if self.whole:
            eventually(lambda: self.features.known.stop == self.loop.drafting.length - 1)
        self.tokens += self.loop.step(0.1).tokens

    def finish(self) -> list[int]:
        while not self.loop.ended:
            self.step()
        self.session.close()
        return self.tokens


# --- the text
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["useless", "taught"])
@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_the_text_is_the_targets_own_seeded_decoding(
    head: str,
    params: SamplingParams,
    connection: Connection,
    ties: NearTies,
    request: pytest.FixtureRequest,
) -> None:
    features = received()
    proposer = proposer_on(request.getfixturevalue(head), features, Clock())

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        session = connection.session(features=features)
        return text_of(prompt, params, session, Decode(len(prompt) + tokens), [proposer])

    own = own_text(TOKENS, params)
    assert_same_text(TARGET, PROMPT, params, own, produce, ties)


def test_a_head_that_has_learned_takes_fewer_forwards_with_features_than_without(
    taught: Path, connection: Connection
) -> None:
    session = connection.session(features=(features := received()))
    with_them = Drafted(session, proposer_on(taught, features, Clock()), whole=True)
    assert with_them.finish() == own_text()
    assert session.traffic.forwards < TOKENS / 2
    alone, silent = connection.session(), proposer_on(taught, received(), Clock())
    assert Drafted(alone, silent, whole=False).finish() == own_text()
    assert (alone.traffic.forwards, silent.calls) == (TOKENS, 0)


class Wrong(ReceivedFeatures):
    """Puts in what no target has computed."""

    def take(self, block: FeatureBlock) -> bool:
        scales = np.full_like(block.scales, 1e30)
        return super().take(block._replace(scales=scales, values=-block.values))


class Holed(ReceivedFeatures):
    """Loses every other message."""

    come = 0

    def take(self, block: FeatureBlock) -> bool:
        self.come += 1
        return super().take(block) if self.come % 2 else True


@pytest.mark.parametrize("kind", [Wrong, Holed])
def test_wrong_and_missing_features_change_no_text(
    kind: type[ReceivedFeatures], taught: Path, connection: Connection
) -> None:
    features = kind(FORM, LENGTH, 10**7)
    session = connection.session(features=features)
    proposer = proposer_on(taught, features, Clock())
    assert Drafted(session, proposer, whole=False).finish() == own_text()


# --- what is sent
# --------------------------------------------------------------------------------------------------


def followed(session: RemoteSession, end: int) -> None:
    session.decode(Decode(end, credit=512))
    while news(session).end is End.NOT:
        pass


def test_what_comes_is_what_the_target_has_computed_rounded_to_8_bits(
    connection: Connection,
) -> None:
    session = connection.session(features=(features := received()))
    session.open(PROMPT, SAMPLINGS[0])
    followed(session, 40)
    eventually(lambda: features.known == range(39))
    states = heads.states_of(TARGET, [*PROMPT, *own_text(19)]).reshape(39, 3, -1)
    off = (features.at(np.arange(39)).reshape(39, 3, -1) - states).abs()
    assert bool((off <= states.abs().amax(-1, keepdim=True) / 254 * 1.01 + 1e-6).all())
    session.close()


def test_who_does_not_ask_gets_none_and_pays_for_none(connection: Connection) -> None:
    costs = []
    for features in (None, received()):
        session = connection.session(features=features)
        session.open(PROMPT, SAMPLINGS[0])
        followed(session, 40)
        if features is not None:
            eventually(lambda features=features: features.known == range(39))
        costs.append(session.traffic.bytes_down)
        session.close()
    without, asked = costs
    assert asked - without >= 39 * FORM.position_bytes > without


def test_a_client_that_wants_no_more_gets_no_more(connection: Connection) -> None:
    session = connection.session(features=(features := received()))
    session.open(PROMPT, SAMPLINGS[0])
    followed(session, 30)
    eventually(lambda: features.known == range(29))
    features.give_up()
    session.decode(Decode(40, pace=Pace.WAIT))
    session.go(29)  # its features are the last, and are answered by the request to stop
    assert len(news(session).tokens) == 1
    eventually(lambda: features.known == range(30))
    session.decode(Decode(200, credit=512))
    while news(session).end is End.NOT:
        pass
    assert features.known.stop < 150
    session.close()


@contextmanager
def over_a_link(engine: Engine) -> Iterator[tuple[Connection, object]]:
    with (
        background(engine) as server,
        shaped_link(str(server.address)) as link,
        connect(link.address, timeout=WAIT, patience=Patience(WAIT)) as connection,
    ):
        yield connection, link.cut


@pytest.mark.parametrize("held", [True, False], ids=["resumed", "opened anew"])
def test_after_a_cut_the_features_go_on_where_they_ended(taught: Path, held: bool) -> None:
    engine = giving()
    with over_a_link(engine) as (connection, cut):
        session = connection.session(features=(features := received()))
        drafted = Drafted(session, proposer_on(taught, features, Clock()), whole=True)
        while len(drafted.tokens) < 10:
            drafted.step()
        known = features.known
        if not held:
            engine.close(engine.sessions[0])
        cut()  # type: ignore[operator]  # a callable
        traffic = session.traffic
        eventually(lambda: traffic.resumes + traffic.reopenings == 1)
        assert drafted.finish() == own_text()
        assert features.known.start == known.start == 0
        assert session.traffic.forwards < TOKENS / 2


# --- what is refused
# --------------------------------------------------------------------------------------------------

ASKED = {
    "other layers": (FORM._replace(layers=(0, 1)), "gives inputs of layers 0, 1, 2"),
    "another width": (FORM._replace(hidden=64), "the head reads inputs .* 64 numbers each"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_other_features_than_the_target_gives_are_refused(
    asked: str, connection: Connection
) -> None:
    form, words = ASKED[asked]
    session = connection.session(features=received(form))
    session.open(PROMPT, SAMPLINGS[0])
    with pytest.raises(Mismatch, match=words):
        until_it_fails(session)


def test_a_target_that_gives_none_says_so() -> None:
    with (
        background(pairs.engine(TARGET)) as server,
        connect(str(server.address), timeout=WAIT) as connection,
    ):
        session = connection.session(features=received())
        session.open(PROMPT, SAMPLINGS[0])
        with pytest.raises(Mismatch, match=r"gives no features .* started with --features"):
            until_it_fails(session)
