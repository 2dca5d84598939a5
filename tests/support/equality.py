"""Losslessness as a comparison: token by token against the target's own seeded decoding.

Exact arithmetic would make every text equal. In float32 another tree size or slot order moves
logits in the last digits, which can flip a near-tie. So a difference is looked at in float64, and
counts as a near-tie only if the two tokens' scores lie within ten times the noise measured at that
very position; then the comparison goes on from the reference's token. Nothing else is tolerated.
`NearTies` fails when they are more than 1 in 10,000 tokens.

Row independence: what a node gets depends on what it sees and on nothing else in its call, to the
last bit. Without it a token's logits would change with the guesses beside it, as per-tensor
quantization of activations does. Every backend passes this before it may serve a target.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference.backends import Model
from inference.backends.sequence import ModelSequence
from inference.model.cache import KeysValues, empty_cache
from inference.model.choice.arithmetic import noise
from inference.model.choice.sampler import Sampling
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree

Produce = Callable[[Sequence[int], int], list[int]]
"""produce(prompt, n): n tokens."""

Adjust = Callable[[Sequence[int], torch.Tensor], torch.Tensor]
"""adjust(text, logits): the logits [V] behind a text, as its rule has them."""


def unadjusted(text: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    return logits


@dataclass
class NearTies:
    """Counts over a test module."""

    tokens: int = 0
    ties: int = 0

    def check(self) -> None:
        print(f"near-ties: {self.ties} in {self.tokens} tokens")
        assert self.ties <= max(1, self.tokens / 10_000)


def full_logits(decoder: Decoder, tokens: Sequence[int]) -> torch.Tensor:  # [n, V]
    """Logits after every token by one plain causal pass over an empty cache, in the decoder's
    precision.
    """
    chain = TokenTree.chain(tokens)
    config = decoder.config
    cache = empty_cache(config, 1, 0, decoder.model.embed_tokens.weight.dtype)
    ids, positions = (
        torch.from_numpy(np.array(part, dtype=np.int32))[None]
        for part in (chain.tokens, chain.depths)
    )
    mask = torch.from_numpy(chain.mask.astype(np.int32))[None]
    with torch.no_grad():
        out = decoder(
            ids,
            torch.zeros(1, dtype=torch.int32),
            positions,
            torch.zeros(1, 1, 1, dtype=torch.int32),
            mask,
            None,
            cache,
        )
        if decoder.lm_head is None:
            return (out.states @ decoder.model.embed_tokens.weight[: decoder.vocabulary].T)[0]
        logits: torch.Tensor = decoder.lm_head(out.states, decoder.vocabulary)[0]
        return logits


def is_near_tie(
    decoder: Decoder,
    prefix: Sequence[int],
    params: SamplingParams,
    ours: int,
    theirs: int,
    adjust: Adjust = unadjusted,
) -> bool:
    """Whether float32 cannot tell these two tokens apart after this prefix."""
    single = full_logits(decoder, prefix)[-1].double()
    double = full_logits(copy.deepcopy(decoder).double(), prefix)[-1]
    allowed = 10 * float((single - double).abs().max()) / (params.temperature or 1.0)
    double = adjust(prefix, double)
    scores = double / (params.temperature or 1.0)
    if not params.greedy:
        sampling = Sampling.of([params], torch.device("cpu"))
        ids = torch.arange(len(double), dtype=torch.int32)
        scores = (
            scores
            + noise(
                sampling.seed[:, None], torch.tensor([[len(prefix)]], dtype=torch.int32), ids[None]
            )[0].double()
        )
    if abs(float(scores[ours] - scores[theirs])) <= allowed:
        return True
    return params.top_p < 1 and _nucleus_edge(
        double / params.temperature, params.top_p, allowed, (ours, theirs)
    )


def _nucleus_edge(
    scaled: torch.Tensor, top_p: float, allowed: float, tokens: tuple[int, int]
) -> bool:
    """Whether one of the tokens lies at the boundary of the nucleus within the allowed error."""
    mass, order = torch.softmax(scaled, -1).sort(descending=True)
    before = dict(zip(order.tolist(), (mass.cumsum(-1) - mass).tolist(), strict=True))
    return any(abs(before[token] - top_p) <= allowed for token in tokens)


def assert_same_text(
    decoder: Decoder,
    prompt: Sequence[int],
    params: SamplingParams,
    reference: list[int],
    produce: Produce,
    count: NearTies,
    adjust: Adjust = unadjusted,
) -> None:
    """`produce` makes the reference's tokens, near-ties apart."""
    count.tokens += len(reference)
    done = 0
    while done < len(reference):
        made = produce([*prompt, *reference[:done]], len(reference) - done)
        assert len(made) == len(reference) - done
        differing = [
            index
            for index, (ours, theirs) in enumerate(zip(made, reference[done:], strict=True))
            if ours != theirs
        ]
        if not differing:
            return
        at = done + differing[0]
        prefix = [*prompt, *reference[:at]]
        ours, theirs = made[differing[0]], reference[at]
        assert is_near_tie(decoder, prefix, params, ours, theirs, adjust), (
            f"token {at}: {ours} for {theirs}"
        )
        count.ties += 1
        done = at + 1


CONTEXT = 12


def assert_rows_are_independent(
    model: Model, cache: KeysValues | None, nodes: int, vocabulary: int, params: SamplingParams
) -> None:
    """The root and its first child are the same in every call; their siblings, descendants and
    the other row are drawn anew.

    cache: the model's keys and values; None, or on no device, where they cannot be seen
    """
    rng = np.random.default_rng(0)
    first, second = ModelSequence(model, 0, params), ModelSequence(model, 1, SamplingParams())
    for sequence in (first, second):
        sequence.extend(rng.integers(0, vocabulary, CONTEXT).tolist())
    seen = []
    for _ in range(6):
        neighbours = TokenTree.chain(rng.integers(0, vocabulary, 2).tolist())
        call = [first.prepare(_tree(nodes, vocabulary, rng)), second.prepare(neighbours)]
        chosen = model.choose(call)[0].tokens
        parts = cache.stacked() if cache is not None and not cache.keys[0].is_meta else ()
        kept = [part[:, 0, call[0].slots[:2]] for part in parts]
        seen.append((torch.from_numpy(chosen[:2].copy()), *kept))
    for other in seen[1:]:
        for ours, theirs in zip(seen[0], other, strict=True):
            assert torch.equal(ours, theirs), "a node differs with the nodes beside it"


def _tree(nodes: int, vocabulary: int, rng: np.random.Generator) -> TokenTree:
    """A random tree of the three levels below a fixed root and child."""
    parents = [-1, 0, *(int(rng.integers(0, min(node, 4))) for node in range(2, nodes))]
    tokens = [
        vocabulary - 1,
        vocabulary - 2,
        *rng.permutation(vocabulary - 2)[: nodes - 2].tolist(),
    ]
    return TokenTree(np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32))
