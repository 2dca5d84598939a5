"""Models of the transformers library with CUDA graphs. Not yet run on CUDA."""

from __future__ import annotations

from torch import Tensor

from inference.backends.cuda.model import RecordedModel
from inference.backends.libraries.transformers_model import TransformersModel


class CudaLibraryModel(RecordedModel, TransformersModel):
    """A TransformersModel whose forward passes are recorded and replayed."""

    def _head_nodes(self, pick: Tensor) -> tuple[Tensor | int, Tensor | None]:
        """Select all nodes (0) if there are several rows: shapes must not depend on the picks."""
        return (pick[0], None) if len(pick) == 1 else (0, pick.long())
