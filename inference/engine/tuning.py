"""Tuned constants of the scheduler, of admission and of calibration, in one record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerTuning:
    """Constants tuned by `python -m benchmarks.floor`, where no other way is given.

    The study simulates latency models, estimates of them and drafts against the promise that each
    session keeps 0.98 of its root-only rate.
    """

    # The promise, in parts of a session's root-only rate and in tokens ahead of it.
    min_rate: float = 0.985  # part; the excess over 0.98 pays a text's last deficit
    max_ahead: float = 4.0  # maximum tokens of service credit
    max_behind: float = 16.0  # maximum recorded tokens of service deficit
    max_deficit: float = 1.0  # tokens of deficit after a wide forward pass (benchmarks.regret)

    # The width of a forward pass, in factors of tokens a second by which a wider one must win.
    min_gain: float = 1.02  # because measured times are noisy
    premium: float = 1.1  # where the wider one's time was not measured

    # Forward passes for measurement. The interval starts at the first number and doubles.
    first_explore: int = 4  # forward passes
    explore: int = 64  # maximum forward passes

    # Chunks of prompts.
    prefill_share: float = 2.0  # times the seconds of a forward pass of the decoding sessions
    max_chunk_seconds: float = 10.0  # seconds: a step beyond 30 s counts as hung
    min_chunk: int = 16  # tokens

    # Calibration of claimed chances, in candidates (benchmarks.floor, drafts that overclaim).
    caution: float = 0.8  # factor on a claim of a proposer without a record
    caution_weight: float = 8.0  # claimed acceptances that `caution` counts for in a record
    claim_fading: float = 0.995  # weight of an observation after each later claim of its class
    max_trust: float = 1.25  # greatest factor on the claims of a modest proposer
    own_weight: float = 4.0  # candidates that count as accepted as expected in a new session
    own_fading: float = 0.95  # weight of a forward pass's outcome after the next forward pass

    # Rows (tests/inference/engine/test_engine.py simulates many tenants on a virtual clock).
    silent_seconds: float = 5.0  # idle time after which a waiting session gets the row
    turn_seconds: float = 2.0  # that a session keeps its row before another tenant may get it


TUNING = SchedulerTuning()
