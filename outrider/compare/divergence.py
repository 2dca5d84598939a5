"""Finds where a text diverges from the target-only one, and how near a tie that was. The target's
scores of both tokens are computed in float32 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compile.plan.memory import free_memory
from inference.cost.quantity import Figure
from inference.sampling import SamplingParams

if TYPE_CHECKING:
    from inference.model.decoder import Decoder
    from outrider.models.loading import Checkpoint


@dataclass(frozen=True)
class Difference:
    """The first token at which a text is not the target-only one."""

    prompt: int
    at: int
    ours: int | None  # None: the text ended there
    theirs: int | None
    margin: Figure  # score of the target's own token over ours; 0 is a tie

    def record(self) -> dict[str, object]:
        """The difference as plain data for JSON."""
        return {**vars(self), "margin": self.margin.record()}


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first position at which two texts differ; None where they are equal."""
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


class Divergence:
    """Scores of the target's checkpoint, which is loaded at the first question.

    checkpoint: None where the target is not on this machine
    """

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint = checkpoint
        self._decoder: Decoder | None = None

    def margin(
        self, prefix: Sequence[int], params: SamplingParams, ours: int | None, theirs: int | None
    ) -> Figure:
        """Margin of the score of the target's own token over ours after this prefix, in units of
        the perturbed score. top_p is ignored.
        """
        if self._checkpoint is None:
            return Figure.unavailable(
                "the target's model is not on this machine: name it with --target_model"
            )
        if ours is None or theirs is None:
            return Figure.unavailable("one of the texts ended there")
        # 16-bit files double in float32
        files = self._checkpoint.directory.glob("*.safetensors")
        needed = 2 * sum(path.stat().st_size for path in files)
        if self._decoder is None and needed > free_memory():
            return Figure.unavailable(
                f"the target needs {needed / 1e9:.1f} GB in float32, more than is free here"
            )
        scores = self._scores(prefix, params, [theirs, ours])
        return Figure.measured(
            scores[0] - scores[1], "the target's scores in float32 on this machine"
        )

    def _scores(
        self, prefix: Sequence[int], params: SamplingParams, ids: Sequence[int]
    ) -> list[float]:
        """Scores of these tokens after the prefix, by one plain causal pass over an empty cache."""
        import numpy as np
        import torch

        from inference.model.cache import empty_cache
        from inference.model.noise import noise
        from inference.model.sampler import Sampling
        from inference.tree import TokenTree

        decoder, chain = self._load(), TokenTree.chain(prefix)
        wanted = torch.tensor(ids, dtype=torch.int32)
        config, at = decoder.config, len(prefix)
        cache = empty_cache(config, 1, 0, torch.float32)
        tokens, positions, mask = (
            torch.from_numpy(np.array(part, dtype=np.int32))[None]
            for part in (chain.tokens, chain.depths, chain.mask)
        )
        pick = torch.tensor([[at - 1]], dtype=torch.int32)
        row, unseen = torch.zeros(1, dtype=torch.int32), torch.zeros(1, 1, 1, dtype=torch.int32)
        with torch.no_grad():
            states = decoder(tokens, row, positions, unseen, mask, pick, cache).states
            chosen = decoder.head_weight()[wanted.long()]
            scores = (states[0, 0] @ chosen.T) / (params.temperature or 1.0)
        if not params.greedy:
            seed = Sampling.of([params], torch.device("cpu")).seed[:, None]
            position = torch.tensor([[at]], dtype=torch.int32)
            scores = scores + noise(seed, position, wanted[None])[0]
        return [float(score) for score in scores]

    def _load(self) -> Decoder:
        import torch

        from inference.model.checkpoint import load_decoder

        if self._decoder is None:
            assert self._checkpoint is not None
            known = self._checkpoint
            self._decoder = load_decoder(
                known.directory,
                positions=known.sequence_length(None),
                vocabulary=known.tokenizer.vocabulary,
                dtype=torch.float32,
                device=torch.device("cpu"),
            )
        return self._decoder
