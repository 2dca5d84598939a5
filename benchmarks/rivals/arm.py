"""Rivals as arms of the measuring core (outrider/measure): their texts are records as ours are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from threading import Event

from inference.cost.billing import Billing
from inference.errors import InvalidRequest, Unavailable
from inference.text.tokenizer import Tokenizer
from inference.text_log import Traffic
from outrider.measure.run import Arm
from outrider.text.completion import Completion, Request, new_completion

Hear = Callable[[Sequence[int]], None]
"""Takes the ids of new tokens as soon as the engine hands them over."""

Play = Callable[[Request, Hear], int]
"""Generates the greedy text of a request. Returns the target's forward passes."""

Plays = dict[str, Play]
"""The arms of an engine by name."""


def rival_arm(name: str, play: Play, tokenizer: Tokenizer, billing: Billing) -> Arm:
    """Return an arm. Its engine computes every prompt anew, so nothing is prepared."""

    def make(request: Request, cancelled: Event) -> Completion:
        if not request.params.greedy:
            raise InvalidRequest("rivals are measured at temperature 0: leave --temperature out")
        done, began = new_completion(request), time.perf_counter()

        def hear(ids: Sequence[int]) -> None:
            done.seconds = time.perf_counter() - began
            done.arrivals.append(done.seconds)
            done.chunk_tokens.append(len(ids))
            done.token_ids += ids

        forwards = play(request, hear)
        if not done.token_ids:
            raise Unavailable(f"{name} generated no token")
        done.traffic = Traffic(forwards=forwards)
        done.text, done.time_to_first_token = tokenizer.decode(done.token_ids), done.arrivals[0]
        done.finish_reason = "stop" if done.token_ids[-1] in request.stop_ids else "length"
        return done

    return Arm(name, make, lambda request, cancelled: new_completion(request), billing, joint=True)


def with_cold_prompts(arms: Iterable[Arm]) -> list[Arm]:
    """Return our arms with prompts that are computed anew for each text, as rivals compute theirs:
    a text of another prompt takes the target's only row in between.
    """

    def forget(arm: Arm, request: Request, cancelled: Event) -> Completion:
        return arm.alone(replace(request, ids=request.ids[-1:], max_new_tokens=1), cancelled)

    return [replace(arm, alone=partial(forget, arm)) for arm in arms]
