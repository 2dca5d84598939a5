"""The pair that ships here is as good as its card says, and small."""

from __future__ import annotations

import json

from inference.backends.eager import EagerModel
from inference.drafters.round_proposer import Chain, RoundProposer
from inference.engine.sessions.local_session import LocalSession
from inference.loop.decode import Step
from inference.order import Decode, Pace
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import EMBEDDED
from outrider.options.roles import TargetRole
from outrider.target.target import load_target
from tests.support.models import loaded
from tests.support.pairs import text_of

TEXTS = [
    "def main(argv):\n",
    "class Node:\n",
    "import os\nimport sys\n\n\ndef walk(top):\n    for name in sorted(os.listdir(top)):\n        "
    "path = os.path.join(top, name)\n" * 8,
]


def test_the_draft_agrees_with_the_target_as_the_card_says() -> None:
    """Metrics are the training script's own; a chain must not be far below what they say."""
    metrics = json.loads((EMBEDDED / "metrics.json").read_text())
    assert metrics["held_out_text"]["draft_covers_target_choice"]["top1"] >= 0.6
    tokenizer, engine = Tokenizer(EMBEDDED / "target"), load_target(TargetRole(batch=1)).engine
    draft = loaded(EMBEDDED / "draft", 1024, tokenizer.vocabulary)
    model = EagerModel(draft, rows=1, capacity=1024 + 63, max_nodes=256)
    steps = list[Step]()
    for number, text in enumerate(TEXTS):
        prompt, params = tokenizer.encode(text), SamplingParams(0.7, seed=40 + number)
        order = Decode(len(prompt) + 48, pace=Pace.WAIT)
        proposer = RoundProposer(model, Chain(1), room=63)
        text_of(prompt, params, LocalSession(engine), order, [proposer], steps.append)
    forwards = [step for step in steps if step.tokens]
    accepted = sum(len(step.tokens) - 1 for step in forwards)
    assert accepted > 0.45 * len(forwards)


def test_the_pair_is_small_enough_to_ship() -> None:
    files = [path for path in EMBEDDED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 15e6
    target, draft = (EMBEDDED / kind / "model.safetensors" for kind in ("target", "draft"))
    assert draft.stat().st_size * 6 <= target.stat().st_size
