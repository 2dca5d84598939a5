"""Messages with the fields of XLA's HloModuleProto that the build reads, as real protobuf."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED
_FIELDS: dict[str, list[tuple[str, int, int, str]]] = {
    "HloInstructionProto": [
        ("name", _Field.TYPE_STRING, _ONE, ""),
        ("opcode", _Field.TYPE_STRING, _ONE, ""),
        ("shape", _Field.TYPE_STRING, _ONE, ""),
        ("metadata", _Field.TYPE_STRING, _ONE, ""),
        ("id", _Field.TYPE_INT64, _ONE, ""),
        ("operand_ids", _Field.TYPE_INT64, _MANY, ""),
        ("control_predecessor_ids", _Field.TYPE_INT64, _MANY, ""),
        ("called_computation_ids", _Field.TYPE_INT64, _MANY, ""),
    ],
    "HloComputationProto": [
        ("name", _Field.TYPE_STRING, _ONE, ""),
        ("instructions", _Field.TYPE_MESSAGE, _MANY, ".fake.HloInstructionProto"),
        ("id", _Field.TYPE_INT64, _ONE, ""),
        ("root_id", _Field.TYPE_INT64, _ONE, ""),
    ],
    "HloModuleProto": [
        ("name", _Field.TYPE_STRING, _ONE, ""),
        ("entry_computation_name", _Field.TYPE_STRING, _ONE, ""),
        ("entry_computation_id", _Field.TYPE_INT64, _ONE, ""),
        ("computations", _Field.TYPE_MESSAGE, _MANY, ".fake.HloComputationProto"),
        ("id", _Field.TYPE_INT64, _ONE, ""),
        ("frontend_attributes", _Field.TYPE_MESSAGE, _ONE, ".fake.FrontendAttributes"),
    ],
    "FrontendAttributes": [
        ("map", _Field.TYPE_MESSAGE, _MANY, ".fake.FrontendAttributes.MapEntry")
    ],
}
_ENTRY = (("key", 1), ("value", 2))


def _module_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="fake_hlo.proto", package="fake")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, label, type_name) in enumerate(fields, 1):
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=type_name or None
            )
        if name == "FrontendAttributes":
            _add_map_entry(message)
    file.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fake.HloModuleProto"))


def _add_map_entry(message: Any) -> None:
    """Make the message's field `map` one of texts by texts."""
    entry = message.nested_type.add(name="MapEntry")
    for name, number in _ENTRY:
        entry.field.add(name=name, number=number, type=_Field.TYPE_STRING, label=_ONE)
    entry.options.map_entry = True


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
