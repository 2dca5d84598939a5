"""Models of the transformers library on CUDA graphs. Not yet run on CUDA."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from inference.backends.cuda import Outputs, RecordedModel, Recorder, Replay
from inference.backends.transformers_model import TransformersModel


class CudaLibraryModel(RecordedModel, TransformersModel):
    """A TransformersModel whose calls are recorded and replayed."""

    def _head_nodes(self, pick: Tensor) -> tuple[Tensor | int, Tensor | None]:
        """Return all nodes (0) for several rows: shapes must not depend on what is picked."""
        return (pick[0], None) if len(pick) == 1 else (0, pick.long())


class IfRecordable:
    """A Recorder for code that is not ours: what cannot be recorded is run each time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def warm(self, run: Replay) -> Outputs:
        return self._recorder.warm(run)

    def record(self, run: Replay) -> tuple[Callable[[], None], Outputs]:
        try:
            return self._recorder.record(run)
        except RuntimeError:
            outputs = run()

        def rerun() -> None:
            for kept, made in zip(outputs, run(), strict=True):
                kept.copy_(made)

        return rerun, outputs
