"""Messages with the fields of XLA's HloModuleProto that the build reads, as real protobuf."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_FIELDS = {
    "HloInstructionProto": "name opcode shape metadata id:int operand_ids:int* "
    "control_predecessor_ids:int* called_computation_ids:int*",
    "HloComputationProto": "name instructions:HloInstructionProto* id:int root_id:int",
    "HloModuleProto": "name entry_computation_name entry_computation_id:int "
    "computations:HloComputationProto* id:int frontend_attributes:FrontendAttributes",
    "FrontendAttributes": "map:FrontendAttributes.MapEntry*",
    "FrontendAttributes.MapEntry": "key value",
}
"""Fields of each message, as NAME:KIND. Strings have no kind; a star repeats the field."""


def _module_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="fake_hlo.proto", package="fake", syntax="proto3"
    )
    messages: dict[str, Any] = {}
    for name, fields in _FIELDS.items():
        owner, _, leaf = name.rpartition(".")
        holder = messages[owner].nested_type if owner else file.message_type
        messages[name] = message = holder.add(name=leaf)
        for number, field in enumerate(fields.split(), 1):
            named, _, kind = field.rstrip("*").partition(":")
            scalar = {"": _Field.TYPE_STRING, "int": _Field.TYPE_INT64}.get(kind)
            message.field.add(
                name=named,
                number=number,
                label=_Field.LABEL_REPEATED if field.endswith("*") else _Field.LABEL_OPTIONAL,
                type=_Field.TYPE_MESSAGE if scalar is None else scalar,
                type_name=f".fake.{kind}" if scalar is None else None,
            )
    messages["FrontendAttributes.MapEntry"].options.map_entry = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fake.HloModuleProto"))


HloModuleProto = _module_class()


class Lowering:
    """Makes modules as a tracer does: numbers go on from one module to the next."""

    def __init__(self) -> None:
        self._last = 0

    def module(self, operations: list[tuple[str, str]]) -> Any:
        """A module of one computation.

        operations: opcode and shape of each, in their order
        """
        module = HloModuleProto(id=self._number())
        module.name = f"SyncTensorsGraph.{self._last}"
        computation = module.computations.add(id=self._number(), name=f"entry.{self._last}")
        module.entry_computation_id, module.entry_computation_name = (
            computation.id,
            computation.name,
        )
        for opcode, shape in operations:
            append(computation, opcode, shape, self._number())
        return module

    def _number(self) -> int:
        self._last += 1
        return self._last


def append(computation: Any, opcode: str, shape: str, number: int) -> None:
    """Add an instruction that takes the one before it."""
    before = [computation.instructions[-1].id] if computation.instructions else []
    computation.instructions.add(
        id=number,
        name=f"{opcode}.{number}",
        opcode=opcode,
        shape=shape,
        metadata=f"traced as number {number}",
        operand_ids=before,
    )
    computation.root_id = number


def program_of(module: Any) -> list[list[str]]:
    """What a module computes, whatever its numbers are."""
    return [[each.opcode, each.shape] for part in module.computations for each in part.instructions]
