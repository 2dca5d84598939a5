"""Models of the transformers library on CUDA graphs. Not yet run on CUDA."""

from __future__ import annotations

from torch import Tensor

from inference.backends.cuda.model import RecordedModel
from inference.backends.libraries.transformers_model import TransformersModel


class CudaLibraryModel(RecordedModel, TransformersModel):
    """A TransformersModel whose calls are recorded and replayed."""

    def _head_nodes(self, pick: Tensor) -> tuple[Tensor | int, Tensor | None]:
        """Return all nodes (0) for several rows: shapes must not depend on what is picked."""
        return (pick[0], None) if len(pick) == 1 else (0, pick.long())
