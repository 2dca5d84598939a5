"""What a head on the client's machine brings, by how much of the prompt's features it is sent, next
to the same head with features as the target has them, unrounded and without a wire.

    python -m benchmarks.train_head --out HEAD_DIR
    python -m benchmarks.head_over_wire --head HEAD_DIR

The target waits for the draft, which waits for the features, and no clock runs: tokens a forward
and bytes depend on the machine in nothing. Texts are beginnings of files that neither model was
trained on. "equal" counts texts that are the target's own (near-ties in float32 aside, all are).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.corpus import checked_listing, read_texts
from benchmarks.harness import command, cpu_decoder, table_lines
from grpc_comm.client.connection import Connection, connect
from grpc_comm.server.server import BackgroundServer, Target
from grpc_comm.translate import Description
from grpc_comm.transport import Address
from inference.backends.eager import EagerModel
from inference.backends.eagle import EagleModel
from inference.backends.received_features import ReceivedFeatures
from inference.decode import Loop
from inference.draft_thread import inline
from inference.drafters.led_proposer import LedProposer
from inference.drafters.model_proposer import ROOM
from inference.engine.engine import Engine
from inference.engine.feature_feed import FeatureOffer
from inference.features import FeatureForm
from inference.link_times import LinkTimes
from inference.model.decoder import Decoder
from inference.model.eagle import EagleHead, load_head
from inference.order import Decode, Pace
from inference.planner.acceptance import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.times import DraftTimes, LatencyModel
from inference.tree import IntArray
from outrider.models import EMBEDDED

LENGTH, NODES, CHUNK = 1024, 64, 256
RATE = 10**9
TEMPERATURES = (0.0, 1.0)
PATIENCE = 60.0


class Unrounded(ReceivedFeatures):
    """Reads what the target itself keeps, as far as it was told that it may."""

    model: EagerModel
    engine: Engine

    def at(self, positions: IntArray) -> torch.Tensor:
        row = self.engine.sessions[0].row
        assert row is not None, "the only session has its row"
        return self.model.features(row.index, row.slots.at(positions))


class Wire(NamedTuple):
    """A target behind gRPC on this machine, and its head."""

    connection: Connection
    engine: Engine
    model: EagerModel
    head: EagleHead
    form: FeatureForm

    def features(self, window: int, *, rounded: bool) -> ReceivedFeatures:
        kind = ReceivedFeatures if rounded else Unrounded
        made = kind(self.form, LENGTH, RATE, window=window, clock=lambda: 0.0)
        if isinstance(made, Unrounded):
            made.model, made.engine = self.model, self.engine
        return made


class Made(NamedTuple):
    """A text, and what it took."""

    tokens: list[int]
    forwards: int
    bytes_down: int


def drafted(
    wire: Wire,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    features: ReceivedFeatures,
) -> Made:
    """The text with the head, which has all features that it is sent before it drafts."""
    model = EagleModel(wire.head, rows=1, capacity=LENGTH + ROOM, max_nodes=CHUNK)
    known = Knowledge(
        DraftTimes({1: 0.001}), LatencyModel({(1, 1): 0.01}), LinkTimes(), read_acceptance()
    )
    proposer = LedProposer(model, 0, known, Prices(), features=features, clock=lambda: 0.0)
    session, made = wire.connection.session(features=features), list[int]()
    order = Decode(len(prompt) + tokens, pace=Pace.WAIT)
    loop = Loop(prompt, params, session, order, inline([proposer]), lambda: 0.0)
    deadline = time.monotonic() + PATIENCE
    while not loop.ended:
        while features.known.stop < loop.drafting.length - 1:
            assert time.monotonic() < deadline, "the features do not come"
            time.sleep(0.001)
        made += loop.step(0.1).tokens
        deadline = time.monotonic() + PATIENCE
    session.close()
    return Made(made, session.traffic.forwards, session.traffic.bytes_down)


def alone(wire: Wire, prompt: Sequence[int], params: SamplingParams, tokens: int) -> Made:
    """The target's own text."""
    session, made = wire.connection.session(), list[int]()
    order = Decode(len(prompt) + tokens)
    loop = Loop(prompt, params, session, order, inline(), lambda: 0.0)
    while not loop.ended:
        made += loop.step(0.1).tokens
    session.close()
    return Made(made, session.traffic.forwards, session.traffic.bytes_down)


def serve(stack: ExitStack, target: Decoder, head: EagleHead, vocabulary: int) -> Wire:
    model = EagerModel(target, rows=1, capacity=LENGTH + NODES, max_nodes=CHUNK)
    model.keep_features(head.config.kept)
    engine = Engine(model, sequence_length=LENGTH, max_tree_nodes=NODES, vocabulary=vocabulary)
    engine.offer = FeatureOffer(model, head.config.form, RATE)
    told = Description(
        "0", "embedded", "m", "t", vocabulary, LENGTH, NODES, 1, "float32", "cpu", frozenset()
    )
    server = BackgroundServer(Target(engine, told, Address("127.0.0.1", 0)))
    connection = connect(str(stack.enter_context(server).address))
    return Wire(stack.enter_context(connection), engine, model, head, head.config.form)


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--head", type=Path, required=True, help="folder of the head")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each text")
    options: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer(EMBEDDED / "target")
    held_out = read_texts(checked_listing(EMBEDDED / "training_files.json", True), "held-out")
    ids = [tokenizer.encode(text) for text in held_out if text]
    prompts = [text[: options.prompt] for text in ids if len(text) > 2 * options.prompt]
    prompts = prompts[: options.texts]
    target = cpu_decoder(EMBEDDED / "target", LENGTH, tokenizer.vocabulary, torch.float32)
    head, rows = load_head(options.head, target, LENGTH), []
    arms = [("unrounded, whole prompt", LENGTH, False), ("int8, whole prompt", LENGTH, True)]
    arms += [(f"int8, its last {window}", window, True) for window in (64, 16, 4)]
    with ExitStack() as stack:
        wire = serve(stack, target, head, tokenizer.vocabulary)
        for temperature in TEMPERATURES:
            params = SamplingParams(temperature, seed=7)
            own = [alone(wire, prompt, params, options.tokens) for prompt in prompts]
            rows.append(cells(temperature, "none, target alone", own, own))
            for name, window, rounded in arms:
                texts = [
                    drafted(
                        wire, prompt, params, options.tokens, wire.features(window, rounded=rounded)
                    )
                    for prompt in prompts
                ]
                rows.append(cells(temperature, name, texts, own))
                print(*rows[-1], sep=" | ", flush=True)
    columns = ["T", "features", "tokens a forward", "KB from the target a token", "equal"]
    print(*table_lines(columns, rows), sep="\n")


def cells(temperature: float, name: str, texts: Sequence[Made], own: Sequence[Made]) -> list[str]:
    tokens = sum(len(one.tokens) for one in texts)
    equal = sum(ours.tokens == theirs.tokens for ours, theirs in zip(texts, own, strict=True))
    return [
        str(temperature),
        name,
        f"{tokens / sum(one.forwards for one in texts):.2f}",
        f"{sum(one.bytes_down for one in texts) / tokens / 1e3:.2f}",
        f"{equal} of {len(texts)}",
    ]


if __name__ == "__main__":
    main()
