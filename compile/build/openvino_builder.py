"""The CPU builder for int8: the decoder as one OpenVINO model of any shape, with matrices rounded
to 8 bits.

OpenVINO's own reader converts a traced module. So nothing is compiled here and no C++ compiler is
needed. Calls are still padded to buckets. Each bucket is compared with torch in float32 on the
rounded weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compile.build.equivalence import INT8, check_equivalence, check_row_independence
from compile.spec import CompileSpec
from inference.artifact import Bucket
from inference.backends.compiled import host
from inference.backends.graph_calls import unstacked
from inference.backends.openvino import (
    DECODER,
    DECODER_WEIGHTS,
    INPUTS,
    SETTINGS,
    OpenVinoDecoder,
    OpenVinoGraph,
    empty_stack,
    import_openvino,
    openvino_host,
)
from inference.errors import InvalidRequest
from inference.model.cache import KeysValues
from inference.model.checkpoint import load_decoder
from inference.model.decoder import Decoder
from inference.model.verify_graph import VerifyGraph, example_inputs

_LEVELS = 127  # integers of -127 to 127, one scale an output
_TINY = 1e-20
_EXAMPLE = Bucket(
    rows=2, nodes=5, slots=24, picks=5, levels=5, sampled=False, junk=40
)  # any shape: none is kept


class OpenVinoBuilder:
    """A Builder (compile/build/build.py) for int8 on the CPU of this machine."""

    target = "cpu"
    workers = 1

    def __init__(self, spec: CompileSpec, checkpoint_directory: Path, vocabulary: int) -> None:
        if spec.compiler_flags:
            raise InvalidRequest(
                f"compiler flag {next(iter(spec.compiler_flags))}: int8 for cpu takes none, "
                "OpenVINO's settings are fixed"
            )
        self._openvino = import_openvino()
        self._spec, self._checkpoint, self._vocabulary = spec, checkpoint_directory, vocabulary
        self._loaded: tuple[Decoder, OpenVinoDecoder, KeysValues] | None = None

    def prepare(self, directory: Path) -> list[str]:
        """Write the whole decoder, for all buckets."""
        model = convert(self._decoder())
        round_matrices(model, self._vocabulary)
        self._openvino.save_model(
            model, directory / "weights" / "decoder.xml", compress_to_fp16=False
        )
        (directory / "weights" / "decoder.xml").replace(directory / DECODER)
        self._loaded = None
        return [DECODER, DECODER_WEIGHTS]

    def build(self, bucket: Bucket, directory: Path) -> list[str]:
        """Check this bucket; no file is written. Raises BadArtifact when the decoder does not
        compute it as torch does, or not row by row.
        """
        decoder, served, cache = self._model(directory)
        eager, graph = VerifyGraph(decoder, cache, bucket.levels), OpenVinoGraph(served, bucket)
        check_equivalence(
            eager, graph, bucket, sequence_length=self._spec.sequence_length, tolerance=INT8
        )
        check_row_independence(
            graph, bucket, self._vocabulary, sequence_length=self._spec.sequence_length
        )
        return []

    def finish(self, directory: Path, buckets: Sequence[Bucket]) -> list[str]:
        """Do nothing: there is one decoder."""
        return []

    def versions(self) -> Mapping[str, str]:
        return {"torch": torch.__version__, "openvino": self._openvino.__version__}

    def host(self) -> Mapping[str, str]:
        return {**host(), **openvino_host(self._openvino)}

    def flags(self) -> Mapping[str, str]:
        return SETTINGS

    def _decoder(self) -> Decoder:
        """The checkpoint in float32, with its matrices as they are after rounding."""
        decoder = load_decoder(
            self._checkpoint,
            positions=self._spec.sequence_length,
            vocabulary=self._vocabulary,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        for linear in matrices(decoder):
            levels, scale = to_int8(linear.detach().numpy())
            linear.data = torch.from_numpy(levels * scale)
        return decoder

    def _model(self, directory: Path) -> tuple[Decoder, OpenVinoDecoder, KeysValues]:
        """The reference, the artefact's decoder, and the caches that both read, which hold noise.
        They are kept for all buckets.
        """
        if self._loaded is None:
            decoder, spec = self._decoder(), self._spec
            keys, values = empty_stack(decoder.config, spec.rows, spec.capacity)
            generator = torch.Generator().manual_seed(0)
            keys.normal_(generator=generator), values.normal_(generator=generator)
            model = self._openvino.Core().read_model(
                directory / DECODER, directory / DECODER_WEIGHTS
            )
            served = OpenVinoDecoder(model, keys, values)
            self._loaded = decoder, served, unstacked(keys, values)
        return self._loaded


class _Logits(nn.Module):
    """The module that is converted: from INPUTS to logits, new keys and new values."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        tokens: Tensor,
        rows: Tensor,
        positions: Tensor,
        context_mask: Tensor,
        tree_mask: Tensor,
        pick: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        cache = unstacked(keys, values)
        out = self.decoder(tokens, rows, positions, context_mask, tree_mask, pick, cache)
        return self.decoder.logits(out.states), *out.new.stacked()


@torch.no_grad()
def convert(decoder: Decoder) -> Any:
    """An openvino.Model of any number of rows, nodes, picks and slots. convert_model is avoided
    because it reports usage to its makers.
    """
    openvino = import_openvino()
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    caches = empty_stack(decoder.config, _EXAMPLE.rows, _EXAMPLE.junk)
    pick = torch.zeros(_EXAMPLE.rows, _EXAMPLE.picks, dtype=torch.int32)
    inputs = [(example_inputs(_EXAMPLE) | {"pick": pick})[name] for name in INPUTS[:-2]]
    traced = TorchScriptPythonDecoder(_Logits(decoder), example_input=(*inputs, *caches))
    frontend = FrontEndManager().load_by_framework("pytorch")
    model = frontend.convert(frontend.load(traced))
    for port, name, example in zip(model.inputs, INPUTS, (*inputs, *caches), strict=True):
        port.get_tensor().set_names({name})
        fixed = {0, 3} if name in ("keys", "values") else set()
        port.get_node().set_partial_shape(
            openvino.PartialShape(
                [size if axis in fixed else -1 for axis, size in enumerate(example.shape)]
            )
        )
        port.get_node().set_element_type(
            openvino.Type.f32 if name in ("keys", "values") else openvino.Type.i32
        )
    model.validate_nodes_and_infer_types()
    return model


def round_matrices(model: Any, vocabulary: int) -> None:
    """Replace the constant factor of every product by integers with a scale for each output. The
    head ends at the vocabulary.
    """
    from openvino import opset13

    for product in [node for node in model.get_ops() if node.get_type_name() == "MatMul"]:
        table = _constant(product.input_value(1).get_node())
        if table is None:
            continue
        assert product.get_attributes()["transpose_b"], "matrices are [outputs, inputs]"
        cut = product.input_value(1).get_node().get_type_name() != "Constant"  # the head's slice
        levels, scale = to_int8(table.data[:vocabulary] if cut else table.data)
        wide = opset13.convert(opset13.constant(levels, dtype=np.int8), "f32")
        product.input(1).replace_source_output(
            opset13.multiply(wide, opset13.constant(scale)).output(0)
        )
    model.validate_nodes_and_infer_types()


def matrices(decoder: Decoder) -> Iterator[Tensor]:
    """The weights that are rounded. A tied head is rounded, and with it its embeddings."""
    for module in decoder.modules():
        if isinstance(module, nn.Linear):
            yield module.weight
    if decoder.config.tied:
        yield decoder.model.embed_tokens.weight


def to_int8(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a float32 matrix [outputs, inputs]. Returns int8 of the same shape and float32 scales
    [outputs, 1].
    """
    scale = np.maximum(np.abs(matrix).max(1, keepdims=True), _TINY).astype(np.float32) / _LEVELS
    return np.round(matrix / scale).astype(np.int8), scale


def _constant(node: Any) -> Any | None:
    """The constant that this factor is, or is cut from. None for a product of two activations."""
    if node.get_type_name() == "Constant":
        return node
    if node.get_type_name() in ("Convert", "Slice", "StridedSlice"):
        return _constant(node.input_value(0).get_node())
    return None
