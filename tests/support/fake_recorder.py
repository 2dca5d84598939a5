"""Stand-ins for CUDA's recordings on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inference.backends.cuda import Outputs, Replay


@dataclass
class Reruns:
    """Runs the function again. Nothing is computed while recording; outputs keep their place."""

    warmed: int = 0
    recorded: int = 0
    replayed: int = 0

    def warm(self, run: Replay) -> Outputs:
        self.warmed += 1
        return run()

    def record(self, run: Replay) -> tuple[Callable[[], None], Outputs]:
        self.recorded += 1
        outputs = tuple(torch.full_like(output, -1) for output in run())

        def replay() -> None:
            self.replayed += 1
            for kept, made in zip(outputs, run(), strict=True):
                kept.copy_(made)

        return replay, outputs


class Traced(Reruns):
    """It refuses what a GPU cannot record: what depends on a tensor's values. It is run once with
    shapes alone.
    """

    def record(self, run: Replay) -> tuple[Callable[[], None], Outputs]:
        with FakeTensorMode(allow_non_fake_inputs=True):
            run()
        return super().record(run)
