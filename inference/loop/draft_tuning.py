"""Constants of drafting, in one record: each with its unit and how it was chosen.

`tuned` cells are those of the regret study (docs/measured.md): the floor, the least gain and
the width were chosen on its tuning texts and confirmed on held-out ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftTuning:
    """Settings of drafting: how drafts grow, what is sent, and what the draft may cost."""

    width: int = 8
    """Children proposed for a ranked node. Tuned cells."""
    widest: int = 32
    """Maximum nodes ranked in a call. Tuned cells."""
    room: int = 768
    """Ranked nodes whose keys a row holds beyond the committed tokens: what the widest calls fill
    in one round trip of 300 ms."""
    worth_ranking: float = 0.6
    """Children are listed for ranking from this part of the minimum value that is sent."""
    part_seconds: float = 0.25
    """Seconds of a call for a part of the prompt. Text copies wait for it."""
    tries_again: int = 64
    """Committed tokens after which a paused draft is tried again."""
    hits_remembered: float = 20.0
    """Tokens after which a hit of the draft has faded to 1/e in the moving average. Without it a
    useless draft is called 1.18 instead of 0.70 times a token, at the same speed (cell 20:useless:0
    of benchmarks.regret)."""
    times_kept: int = 16
    """Calls of the draft after which prices and measured times are read again."""
    copied: int = 3
    """Maximum tokens that copied text proposes for a context."""
    forward_forgetting: float = 0.2
    """Weight of the latest forward pass in the moving average of a forward pass's seconds."""
    remembered_tokens: float = 100.0
    """Tokens after which a token has faded to 1/e in the average cost of a token."""
    least_gain: float = 0.005
    """Expected tokens below which no call is made, however cheap it is. Tuned cells."""
    token_bytes: float = 1000.0
    """Bytes that may be sent for one expected token, where no price of bytes is stated. Sending all
    nodes takes two to three times the bytes and saves a few percent of the time. Tuned cells."""
    battery_price: float = 0.03
    """Seconds of waiting that one second of drafting is worth, on a battery or where the power
    source is unknown."""
    loss: float = 0.015
    """Part of a text's tokens that drafting on the target's own machine may cost it. The excess
    over 0.98 repays the loan in a text of 256 tokens (benchmarks.floor --worlds)."""
    loan: float = 1.0
    """Tokens that such a text may lose beyond that. A draft that has lost them pauses until the
    loss above has made up for them."""
    most_ahead: float = 6.0
    """Tokens of gain that count against such a text's later losses: with the loan, a dozen passes
    that take 1.5 times as long (shared-late-in-a-row of benchmarks.floor --worlds)."""
    most_behind: float = 5.0
    """Maximum recorded tokens beyond what such a text may lose: a single pause of the machine must
    not decide."""
    most_lost: float = 20.0
    """Maximum tokens that such a text loses to the draft between two reports: a longer wait is a
    pause of the machine, for which the draft would otherwise be paused for a hundred thousand
    tokens."""
    retimed: int = 512
    """Tokens of such a text after which forward passes are timed without the draft again."""


TUNING = DraftTuning()
