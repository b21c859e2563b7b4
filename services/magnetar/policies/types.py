"""The types that values of policies have: what is valid, in which unit, with which JSON form.

A value is plain JSON (dict, list, str, int, float, bool). `Type.check(value, where)` gives back the
value as it is stored, with defaults of absent fields filled in, or raises `PolicyInvalid`, whose
text names the field and what would be right. Types know nothing of REST or Kubernetes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
ITEMS_MAX: Final = 1_000
"""Of a list or a map."""
TEXT_CHARACTERS_MAX: Final = 4_096


class PolicyInvalid(ValueError):
    """A value is not valid. `where` is the path to the field, the text says what would be right.

    `refusal` is the whole text that Pulsar answers over REST; empty where it has none of its own.
    """

    def __init__(self, where: str, text: str, refusal: str = "") -> None:
        super().__init__(f"{where}: {text}" if where else text)
        self.where = where
        self.text = text
        self.refusal = refusal


class PolicyMalformed(PolicyInvalid):
    """A value is not even of the right form: a text for a number, a field that is missing."""


class Unit(Enum):
    """What a number counts. Where people write it by hand, `7d` and `10Gi` are understood."""

    NONE = ""
    SECONDS = "s"
    MINUTES = "min"
    MILLISECONDS = "ms"
    BYTES = "bytes"
    MEBIBYTES = "MiB"
    MESSAGES = "messages"
    MESSAGES_PER_SECOND = "messages/s"
    BYTES_PER_SECOND = "bytes/s"

    @property
    def is_duration(self) -> bool:
        return self in (Unit.SECONDS, Unit.MINUTES, Unit.MILLISECONDS)

    @property
    def is_size(self) -> bool:
        return self in (Unit.BYTES, Unit.MEBIBYTES)


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number of `unit`, `low` to `high`."""

    unit: Unit = Unit.NONE
    low: int = 0
    high: int = INT32_MAX
    refusal: str = ""
    """Pulsar's whole text for a smaller value (`PolicyInvalid.refusal`)."""

    def check(self, value: object, where: str = "") -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise PolicyMalformed(where, f"must be a whole number, and is {value!r}")
        if value < self.low:
            text = f"must be {self.low} or more, and is {value}"
            raise PolicyInvalid(where, text, self.refusal)
        if value > self.high:
            raise PolicyInvalid(where, f"must be {self.high} or less, and is {value}")
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number with a fraction, `low` to `high`."""

    unit: Unit = Unit.NONE
    low: float = 0.0
    high: float = math.inf

    def check(self, value: object, where: str = "") -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise PolicyMalformed(where, f"must be a number, and is {value!r}")
        if not self.low <= value <= self.high:
            raise PolicyInvalid(where, f"must be {self.low:g} to {self.high:g}, and is {value}")
        return float(value)


@dataclass(frozen=True, slots=True)
class Boolean:
    """true or false."""

    def check(self, value: object, where: str = "") -> bool:
        if not isinstance(value, bool):
            raise PolicyMalformed(where, f"must be true or false, and is {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text that `pattern` matches as a whole."""

    pattern: str = ""

    def check(self, value: object, where: str = "") -> str:
        if not isinstance(value, str):
            raise PolicyMalformed(where, f"must be a text, and is {value!r}")
        if len(value) > TEXT_CHARACTERS_MAX:
            raise PolicyInvalid(where, f"must have at most {TEXT_CHARACTERS_MAX} characters")
        if self.pattern and re.fullmatch(self.pattern, value) is None:
            raise PolicyInvalid(where, f"must match {self.pattern}, and is {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some texts, each with its meaning."""

    meanings: Mapping[str, str]
    json_names: Mapping[str, str] = field(default_factory=dict)
    """Texts that JSON has in another form than manifests: that of Java's enum constants. Either
    form is valid; the value is JSON's."""
    unoffered: tuple[str, ...] = ()
    """Texts that clients send and no manifest needs."""
    refusal: str = ""
    """Pulsar's whole text for any other text (`PolicyInvalid.refusal`), with `{}` for it."""

    def check(self, value: object, where: str = "") -> str:
        if isinstance(value, str) and value in (*self.json_names.values(), *self.unoffered):
            return value
        if not isinstance(value, str) or value not in self.meanings:
            text = f"must be one of {', '.join(self.meanings)}: {value!r}"
            raise PolicyInvalid(where, text, self.refusal.format(value))
        return self.json_names.get(value, value)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list without repetitions."""

    item: "Type"

    def check(self, value: object, where: str = "") -> list[Any]:
        if not isinstance(value, list):
            raise PolicyMalformed(where, f"must be a list, and is {value!r}")
        if len(value) > ITEMS_MAX:
            raise PolicyInvalid(where, f"must have at most {ITEMS_MAX} items, and has {len(value)}")
        checked: list[Any] = []
        for at, one in enumerate(value):
            item = self.item.check(one, f"{where}[{at}]")
            if item in checked:
                raise PolicyInvalid(f"{where}[{at}]", f"{item!r} is there twice")
            checked.append(item)
        return checked


@dataclass(frozen=True, slots=True)
class MapOf:
    """From texts that `key` takes to values."""

    key: "Text | Choice"
    value: "Type"

    def check(self, value: object, where: str = "") -> dict[str, Any]:
        if not isinstance(value, dict):
            raise PolicyMalformed(where, f"must be an object, and is {value!r}")
        if len(value) > ITEMS_MAX:
            raise PolicyInvalid(where, f"must have at most {ITEMS_MAX} keys, and has {len(value)}")
        return {
            self.key.check(name, f"{where}, key"): self.value.check(one, below(where, name))
            for name, one in value.items()
        }


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record. Without a default it must be there; None: absent unless given."""

    name: str
    """In JSON, as Pulsar calls it."""
    type: "Type"
    text: str
    default: object = ...
    manifest: str = ""
    """Its name in a manifest, where the type's unit is written out with the value (`time: 7d`)."""
    alias: str = ""
    """What older clients call it in JSON."""

    @property
    def manifest_name(self) -> str:
        return self.manifest or self.name

    @property
    def required(self) -> bool:
        return self.default is ...


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold between fields of a record: as a CEL expression over `self`, whose fields are
    those of the manifest, and as a function over the JSON form. Both are tried on the same values
    in the tests."""

    cel: str
    text: str
    """What is wrong, and what to do, where it does not hold."""
    holds: Any = field(compare=False)
    """`Callable[[dict[str, Any]], bool]`"""
    refusal: str = ""
    """Pulsar's whole text (`PolicyInvalid.refusal`), with the fields' names in braces."""


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known fields; others are ignored: Pulsar's clients send more than is asked."""

    fields: tuple[Field, ...]
    rules: tuple[Rule, ...] = ()

    def check(self, value: object, where: str = "") -> dict[str, Any]:
        if not isinstance(value, dict):
            raise PolicyMalformed(where, f"must be an object, and is {value!r}")
        checked: dict[str, Any] = {}
        for one in self.fields:
            given = value.get(one.name)
            if given is None and one.alias:
                given = value.get(one.alias)
            if given is not None:
                checked[one.name] = one.type.check(given, below(where, one.name))
            elif one.required:
                raise PolicyMalformed(below(where, one.name), "must be there")
            elif one.default is not None:
                checked[one.name] = one.default
        for rule in self.rules:
            if not rule.holds(checked):
                raise PolicyInvalid(where, rule.text, rule.refusal.format_map(checked))
        return checked


Type = Integer | Number | Boolean | Text | Choice | ListOf | MapOf | Record


def below(where: str, name: str) -> str:
    """The path of a field in what is at `where`."""
    return f"{where}.{name}" if where else name
