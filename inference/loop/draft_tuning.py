"""Constants of drafting, each with its unit and how it was chosen.

"Tuned cells" refers to the regret study (docs/measured.md): the floor, the minimum gain and the
width were chosen on its tuning texts and confirmed on held-out texts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftTuning:
    """Constants for how drafts grow, what is sent, and what drafting may cost."""

    width: int = 8
    """Children proposed for a ranked node. Tuned cells."""
    widest: int = 32
    """Maximum nodes ranked in a call. Tuned cells."""
    room: int = 768
    """Ranked nodes whose keys a row holds after the committed tokens: as many as the widest calls
    rank in one round trip of 300 ms."""
    worth_ranking: float = 0.6
    """A child becomes a node for ranking at this fraction of the minimum value that is sent."""
    part_seconds: float = 0.25
    """Maximum seconds of a call that prefills a part of the prompt; copied text waits for it."""
    tries_again: int = 64
    """Committed tokens after which a paused draft is tried again."""
    hits_remembered: float = 20.0
    """Tokens after which a hit of the draft has faded to 1/e in the moving average. Without fading,
    a useless draft is called 1.18 instead of 0.70 times per token, at the same speed (cell
    20:useless:0 of benchmarks.regret)."""
    price_interval: int = 16
    """Draft calls after which prices are read again."""
    copied: int = 3
    """Maximum tokens that copied text proposes for a context."""
    forward_forgetting: float = 0.2
    """Weight of the latest forward pass in the moving average of a forward pass's seconds."""
    remembered_tokens: float = 100.0
    """Tokens after which an observation has faded to 1/e in the average cost of a token."""
    min_gain: float = 0.005
    """Minimum expected tokens of a draft call, however cheap the call is. Tuned cells."""
    token_bytes: float = 1000.0
    """Bytes that may be sent for one expected token if bytes have no price. Sending all nodes takes
    two to three times the bytes and saves a few percent of the time. Tuned cells."""
    battery_price: float = 0.03
    """Seconds of waiting that one second of drafting is worth, on battery power or if the power
    source is unknown."""
    loss: float = 0.015
    """Fraction of an output's tokens that drafting on the target's own machine may cost. The excess
    over 0.98 repays the loan in an output of 256 tokens (benchmarks.floor --worlds)."""
    loan: float = 1.0
    """Tokens that such an output may lose in addition. A draft that has lost them pauses until the
    fraction above has made up for them."""
    max_ahead: float = 6.0
    """Maximum gained tokens that offset such an output's later losses: with the loan, a dozen
    passes that take 1.5 times as long (shared-late-in-a-row of benchmarks.floor --worlds)."""
    max_behind: float = 5.0
    """Maximum recorded tokens beyond what such an output may lose, so that a single pause of the
    machine does not decide."""
    max_lost: float = 20.0
    """Maximum recorded loss in tokens of such an output between two reports: a longer wait is a
    pause of the machine, for which the draft would otherwise be paused for a hundred thousand
    tokens."""
    retimed: int = 512
    """Tokens of such an output after which forward passes are timed without the draft again."""


TUNING = DraftTuning()
