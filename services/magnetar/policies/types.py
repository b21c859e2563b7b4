"""The types of policies' values: their validity, units and JSON forms.

A value is plain JSON (dict, list, str, int, float, bool). `Type.check(value, where)` returns the
value as it is stored, with defaults for absent fields, or raises `PolicyInvalid`, whose text names
the field and its valid values. Types do not depend on REST or Kubernetes.
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
"""Items of a list or a map."""
TEXT_CHARACTERS_MAX: Final = 4_096


class PolicyInvalid(ValueError):
    """A value is invalid. `where` is the path of the field; the text describes valid values.

    `refusal` is Pulsar's whole text over REST; empty if Pulsar has none of its own.
    """

    def __init__(self, where: str, text: str, refusal: str = "") -> None:
        super().__init__(f"{where}: {text}" if where else text)
        self.where = where
        self.text = text
        self.refusal = refusal


class PolicyMalformed(PolicyInvalid):
    """A value has the wrong form: a text for a number, or a missing field."""


class Unit(Enum):
    """The unit of a number. Manifests accept forms such as `7d` and `10Gi`."""

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
        """Whether the unit measures time."""
        return self in (Unit.SECONDS, Unit.MINUTES, Unit.MILLISECONDS)


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number of `unit`, from `low` to `high`."""

    unit: Unit = Unit.NONE
    low: int = 0
    high: int = INT32_MAX
    refusal: str = ""
    """Pulsar's whole text for a value below `low` (`PolicyInvalid.refusal`)."""

    def check(self, value: object, where: str = "") -> int:
        """Returns the value as stored; raises PolicyInvalid."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise PolicyMalformed(where, f"must be a whole number, and is {value!r}")
        if value < self.low:
            text = f"must be {self.low} or more, and is {value}"
            raise PolicyInvalid(where, text, self.refusal)
        if value > self.high:
            # What Pulsar's type cannot hold is malformed: its refusals speak of values below `low`.
            fault = PolicyMalformed if self.high in (INT32_MAX, INT64_MAX) else PolicyInvalid
            raise fault(where, f"must be {self.high} or less, and is {value}")
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number with a fraction, from `low` to `high`."""

    unit: Unit = Unit.NONE
    low: float = 0.0
    high: float = math.inf

    def check(self, value: object, where: str = "") -> float:
        """Returns the value as stored; raises PolicyInvalid."""
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise PolicyMalformed(where, f"must be a number, and is {value!r}")
        if not self.low <= value <= self.high:
            raise PolicyInvalid(where, f"must be {self.low:g} to {self.high:g}, and is {value}")
        return float(value)


@dataclass(frozen=True, slots=True)
class Boolean:
    """A value that is true or false."""

    def check(self, value: object, where: str = "") -> bool:
        """Returns the value as stored; raises PolicyInvalid."""
        if not isinstance(value, bool):
            raise PolicyMalformed(where, f"must be true or false, and is {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text that matches `pattern` as a whole."""

    pattern: str = ""

    def check(self, value: object, where: str = "") -> str:
        """Returns the value as stored; raises PolicyInvalid."""
        if not isinstance(value, str):
            raise PolicyMalformed(where, f"must be a text, and is {value!r}")
        if len(value) > TEXT_CHARACTERS_MAX:
            raise PolicyInvalid(where, f"must have at most {TEXT_CHARACTERS_MAX} characters")
        if self.pattern and re.fullmatch(self.pattern, value) is None:
            raise PolicyInvalid(where, f"must match {self.pattern}, and is {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several texts; `meanings` explains each."""

    meanings: Mapping[str, str]
    json_names: Mapping[str, str] = field(default_factory=dict)
    """Texts with another form in JSON than in manifests: that of Java's enum constants. Either form
    is valid; the stored value has JSON's."""
    unoffered: tuple[str, ...] = ()
    """Texts that clients send and that manifests do not need."""
    refusal: str = ""
    """Pulsar's whole text for any other value (`PolicyInvalid.refusal`), with `{}` for it."""

    def check(self, value: object, where: str = "") -> str:
        """Returns the value in JSON's form; raises PolicyInvalid."""
        if isinstance(value, str) and value in (*self.json_names.values(), *self.unoffered):
            return value
        if not isinstance(value, str) or value not in self.meanings:
            text = f"must be one of {', '.join(self.meanings)}: {value!r}"
            raise PolicyInvalid(where, text, self.refusal.format(value))
        return self.json_names.get(value, value)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list without duplicates."""

    item: "Type"

    def check(self, value: object, where: str = "") -> list[Any]:
        """Returns the list as stored; raises PolicyInvalid."""
        if not isinstance(value, list):
            raise PolicyMalformed(where, f"must be a list, and is {value!r}")
        if len(value) > ITEMS_MAX:
            raise PolicyInvalid(where, f"must have at most {ITEMS_MAX} items, and has {len(value)}")
        checked: list[Any] = []
        for index, element in enumerate(value):
            item = self.item.check(element, f"{where}[{index}]")
            if item in checked:
                raise PolicyInvalid(f"{where}[{index}]", f"{item!r} is there twice")
            checked.append(item)
        return checked


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map from texts that `key` accepts to values."""

    key: "Text | Choice"
    value: "Type"

    def check(self, value: object, where: str = "") -> dict[str, Any]:
        """Returns the map as stored; raises PolicyInvalid."""
        if not isinstance(value, dict):
            raise PolicyMalformed(where, f"must be an object, and is {value!r}")
        if len(value) > ITEMS_MAX:
            raise PolicyInvalid(where, f"must have at most {ITEMS_MAX} keys, and has {len(value)}")
        return {
            self.key.check(name, f"{where}, key"): self.value.check(item, below(where, name))
            for name, item in value.items()
        }


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record. Without a default it is required; default None: absent unless given."""

    name: str
    """The name in JSON, which is Pulsar's."""
    type: "Type"
    text: str
    default: object = ...
    manifest: str = ""
    """The name in a manifest, if it differs; values there have a unit (`time: 7d`)."""
    alias: str = ""
    """The name that older clients use in JSON."""

    @property
    def manifest_name(self) -> str:
        """The name in a manifest."""
        return self.manifest or self.name

    @property
    def required(self) -> bool:
        """Whether the field must be given."""
        return self.default is ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition between the fields of a record, in two forms.

    One is a CEL expression over `self`, with the manifest's fields; the other is a function of the
    JSON form. Tests try both on the same values.
    """

    cel: str
    text: str
    """The text for a violation: the error, and the remedy."""
    holds: Any = field(compare=False)
    """`Callable[[dict[str, Any]], bool]`"""
    refusal: str = ""
    """Pulsar's whole text (`PolicyInvalid.refusal`), with the fields' names in braces."""


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known fields. Others are left out: documents of newer versions have them."""

    fields: tuple[Field, ...]
    rules: tuple[Rule, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """Names of Pulsar's fields that have no effect here, each with what to do instead.

    A value other than null is invalid, so that no user relies on it.
    """

    def check(self, value: object, where: str = "") -> dict[str, Any]:
        """Returns the object as stored, with defaults; raises PolicyInvalid."""
        if not isinstance(value, dict):
            raise PolicyMalformed(where, f"must be an object, and is {value!r}")
        for name, remedy in self.refused:
            if value.get(name) is not None:
                text = f"is not supported: {remedy}"
                raise PolicyInvalid(below(where, name), text, f"{name} {text}")
        checked: dict[str, Any] = {}
        for item in self.fields:
            given = value.get(item.name)
            if given is None and item.alias:
                given = value.get(item.alias)
            if given is not None:
                checked[item.name] = item.type.check(given, below(where, item.name))
            elif item.required:
                raise PolicyMalformed(below(where, item.name), "must be there")
            elif item.default is not None:
                checked[item.name] = item.default
        for rule in self.rules:
            if not rule.holds(checked):
                raise PolicyInvalid(where, rule.text, rule.refusal.format_map(checked))
        return checked


Type = Integer | Number | Boolean | Text | Choice | ListOf | MapOf | Record


def below(where: str, name: str) -> str:
    """Returns the path of a field below `where`."""
    return f"{where}.{name}" if where else name
