"""Tuned constants of the scheduler, admission and calibration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerTuning:
    """Constants tuned by `python -m benchmarks.floor`, unless a comment names another study.

    It simulates latency models, errors of their estimates, and drafts, to check that each session
    keeps 0.98 of its root-only rate.
    """

    # The promised rate, relative to a session's root-only rate, and tokens ahead of or behind it.
    min_rate: float = 0.985  # fraction; the excess over 0.98 repays an output's last deficit
    max_ahead: float = 4.0  # maximum tokens of service credit
    max_behind: float = 16.0  # maximum recorded tokens of service deficit
    max_deficit: float = 1.0  # tokens of deficit after a wide forward pass (benchmarks.regret)

    # The width of a pass: factors in tokens per second by which a wider pass must win.
    min_gain: float = 1.02  # because measured times are noisy
    premium: float = 1.1  # if the wider pass's time was not measured

    # Forward passes for measurement. The interval starts at the first number and doubles.
    first_explore: int = 4  # forward passes
    explore: int = 64  # maximum forward passes

    # Chunks of prompts.
    prefill_share: float = 2.0  # times the seconds of a forward pass of the decoding sessions
    max_chunk_seconds: float = 10.0  # seconds: a step beyond 30 s counts as hung
    min_chunk: int = 16  # tokens

    # Calibration of claimed probabilities, in candidates (benchmarks.floor, drafts that overclaim).
    caution: float = 0.8  # factor on a claim of a proposer without a record
    caution_weight: float = 8.0  # claimed acceptances that `caution` counts for in a record
    claim_fading: float = 0.995  # weight of an observation after each later claim of its class
    max_trust: float = 1.25  # maximum factor on the claims of a proposer that claims too little
    own_weight: float = 4.0  # candidates that count as accepted as expected in a new session
    own_fading: float = 0.95  # weight of a forward pass's outcome after the next forward pass

    # Rows (tests/inference/engine/test_engine.py simulates many tenants on a virtual clock).
    silent_seconds: float = 5.0  # idle time after which a waiting session gets the row
    turn_seconds: float = 2.0  # time for which a session keeps its row before another tenant may


TUNING = SchedulerTuning()
