"""Stand-ins for CUDA's recordings on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inference.backends.cuda.model import Outputs, Run


@dataclass
class Reruns:
    """Runs the function again. Outputs keep their place."""

    eager: int = 0
    recorded: int = 0
    replayed: int = 0

    def run(self, run: Run) -> Outputs:
        self.eager += 1
        return run()

    def record(self, run: Run) -> Run:
        outputs = tuple(torch.full_like(output, -1) for output in run())
        self.recorded += 1

        def replay() -> Outputs:
            self.replayed += 1
            for kept, made in zip(outputs, run(), strict=True):
                kept.copy_(made)
            return outputs

        return replay


class Traced(Reruns):
    """It refuses what a GPU cannot record: what depends on a tensor's values. It is run once with
    shapes alone.
    """

    def record(self, run: Run) -> Run:
        with FakeTensorMode(allow_non_fake_inputs=True):
            run()
        return super().record(run)
