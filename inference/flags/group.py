"""Groups of options: frozen records of flags, each declared once.

A field's type determines the values of its flag, the field's default is the flag's default, and the
docstring below the field is the flag's help. Parsing, help and docs/flags.md are generated from
these declarations. A command's options inherit from their groups. Rules state which flags exclude
each other, and which need another flag.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from inference.command import nearest
from inference.errors import InvalidRequest
from inference.files.json_file import shown


class Metavar(NamedTuple):
    """Field marker: the placeholder for the flag's value in the help."""

    text: str


class Multiple(NamedTuple):
    """Field marker for a tuple: its flag may be repeated, once for each element."""


class Alias(NamedTuple):
    """Field marker: another name of the flag."""

    name: str


FlagValues = Mapping[str, tuple[Any, Any]]
"""Value and default of each flag, by the flag's name."""


class FlagRule(NamedTuple):
    """A rule: some flags exclude or need others. `why` is appended to the error.

    Conditions are separated by spaces: `gamma` holds if the flag's value is not the default;
    `pace=wait` and `device=neuron*` hold if the flag's value matches.
    """

    flags: str  # the rule applies if any of these conditions holds
    excludes: str = ""  # none of these may hold
    needs: str = ""  # one of these must hold
    why: str = ""

    def check(self, values: FlagValues) -> None:
        """Raise ValueError if the values break the rule and the rule applies to them."""
        because = f": {self.why}" if self.why else ""
        for flag in _true_conditions(self.flags, values):
            for clash in _true_conditions(self.excludes, values):
                if clash != flag:
                    raise ValueError(f"{flag} does not go with {clash}{because}: give one of them")
            needs = [need for need in self.needs.split() if need.partition("=")[0] in values]
            if needs and not any(_true_conditions(self.needs, values)):
                flags = " or ".join(flag_text(*need.partition("=")[::2]) for need in needs)
                raise ValueError(f"{flag} needs {flags}{because}")


def _true_conditions(conditions: str, values: FlagValues) -> Iterator[str]:
    """Yield the conditions that hold, as a user writes their flags."""
    for condition in conditions.split():
        name, equals, pattern = condition.partition("=")
        value, default = values.get(name, (None, None))
        if fnmatchcase(str(value), pattern) if equals else value != default:
            yield flag_text(name, value if equals else "")


def flag_text(name: str, value: object) -> str:
    """Return a flag as a user writes it, with its value if it takes one."""
    return f"--{name} {str(value).strip('*')}" if value else f"--{name}"


class Group(BaseModel):
    """Base of every group. Raises InvalidRequest, in one line, for values that are not allowed."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
    )

    RULES: ClassVar[tuple[FlagRule, ...]] = ()
    """Rules of the group's flags, each of which excludes or needs other flags."""

    def __init__(self, /, **values: Any) -> None:
        """Take values by the names of their flags."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidRequest(refusal(type(self), error)) from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.RULES:
            flags, values = flags_of(type(self)), self.values()
            pairs = {name: (values[name], flag.field.default) for name, flag in flags.items()}
            for rule in self.RULES:
                rule.check(pairs)
        return self

    def replace(self, **changes: Any) -> Self:
        """Return a copy of this group with these changes, validated again."""
        return type(self)(**self.explicit() | changes)

    def values(self) -> dict[str, Any]:
        """Return every value by its flag's name."""
        return self._by_flag(type(self).model_fields)

    def explicit(self, flags: Container[str] | None = None) -> dict[str, Any]:
        """Return the explicitly set values by flag name. flags: only these; None: all"""
        values = self._by_flag(self.model_fields_set)
        return {name: value for name, value in values.items() if flags is None or name in flags}

    def _by_flag(self, names: Container[str]) -> dict[str, Any]:
        fields = type(self).model_fields.items()
        return {field.alias or name: vars(self)[name] for name, field in fields if name in names}

    def changed(self, group: type[Group]) -> list[str]:
        """Return the flags declared by `group` that are not at their default."""
        fields = type(self).model_fields
        names = [name for name in get_annotations(group) if name in fields]
        return [f"--{name}" for name in names if vars(self)[name] != fields[name].default]


@dataclass(frozen=True)
class Flag:
    """The flag of a field. `title` is the title of its group."""

    name: str
    field: FieldInfo
    title: str

    @property
    def kind(self) -> Any:
        """The type of its value."""
        return self._parts[0]

    @property
    def spellings(self) -> list[str]:
        """The flag, and its other name if any."""
        aliases = (mark.name for mark in self._parts[1] if isinstance(mark, Alias))
        return [f"--{name}" for name in (self.name, *aliases)]

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def metavar(self) -> str:
        default = {float: "NUMBER", int: "N"}.get(self.kind, "TEXT")
        return next((mark.text for mark in self._parts[1] if isinstance(mark, Metavar)), default)

    @property
    def allowed(self) -> str:
        """A description of the values that the flag allows."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kinds = {int: "a whole number", float: "a number", bool: "true or false"}
        if get_origin(self.kind) is tuple:
            several = {float: "numbers", str: "words"}.get(get_args(self.kind)[0], "whole numbers")
            return f"a list of {several} separated by commas"
        return f"{kinds.get(self.kind, 'text')}{self._bounds}"

    @property
    def repeated(self) -> bool:
        """Whether the flag may be given several times."""
        return any(isinstance(mark, Multiple) for mark in self._parts[1])

    @property
    def help(self) -> str:
        """The help text, with the default if there is one."""
        text = " ".join((self.field.description or "").split())
        default = self.field.default
        silent = self.field.is_required() or default in (None, ()) or default is False
        return text if silent else f"{text} (default: {_shown(default)})"

    @property
    def _bounds(self) -> str:
        marks = self._parts[1]
        low = [mark.ge for mark in marks if isinstance(mark, Ge)]
        high = [mark.le for mark in marks if isinstance(mark, Le)]
        if low and high:
            return f" from {low[0]} to {high[0]}"
        words = [f" of {bound} or more" for bound in low] + [f" up to {bound}" for bound in high]
        words += [f" above {mark.gt}" for mark in marks if isinstance(mark, Gt)]
        return "".join(words + [f" below {mark.lt}" for mark in marks if isinstance(mark, Lt)])

    @cached_property
    def _parts(self) -> tuple[Any, list[Any]]:
        """The field's type without None, and its markers."""
        kind, marks = self.field.annotation, list(self.field.metadata)
        if get_origin(kind) in (Union, UnionType):
            (kind,) = (option for option in get_args(kind) if option is not NoneType)
        if get_origin(kind) is Annotated:
            kind, *markers = get_args(kind)
            marks += markers
        return kind, marks


def _shown(value: object) -> str:
    """Return a default as a user would write it."""
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def flags_of(model: type[Group]) -> dict[str, Flag]:
    """Return a group's flags by name. Do not change the shared mapping."""
    flags: dict[str, Flag] = {}
    for name, field in model.model_fields.items():
        owner = next(base for base in model.__mro__ if name in get_annotations(base))
        flag = Flag(field.alias or name, field, str(owner.__dict__["model_config"].get("title")))
        flags[flag.name] = flag
    return flags


def brief(value: object) -> str:
    """Return the beginning of a value from a file; YAML aliases may repeat its parts endlessly."""
    return (value if isinstance(value, str) else shown(value))[:40]


def refusal(
    model: type[Group],
    error: ValidationError,
    label: Callable[[str], str] = "--{}".format,
) -> str:
    """Return a one-line error about the values.

    label: formats a flag's name for the error
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    raised = first.get("ctx", {}).get("error")
    if not first["loc"]:
        return str(raised)
    missing = [label(str(problem["loc"][0])) for problem in errors if problem["type"] == "missing"]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed"
    name, got, flags = str(first["loc"][0]), brief(first["input"]), flags_of(model)
    if name not in flags:
        return f"there is no option {name}{nearest(name, flags)}"
    reason = f"{flags[name].allowed} is needed{nearest(got, flags[name].choices)}"
    return f"{label(name)} {got}: {raised or reason}"
