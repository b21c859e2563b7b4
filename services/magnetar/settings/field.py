"""Declares settings: fields of dataclasses with unit, range, Pulsar's key and a description.

`setting()` stores this metadata in the field. Validation, `magnetar config explain` and
`docs/run/configuration.md` all use it, so nothing is declared twice.

Settings that belong together form a group, a frozen dataclass that knows no other group. The
settings of a role compose the groups that the role needs (`group()`) and add its own. Users see no
groups: flags, environment and files name a setting by the name of its field, which is unique in a
role. `settings_of`, `values_of` and `compose` convert between this flat view and the groups.
`checked` verifies the ranges of a role's settings, however they were built.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_args

from magnetar.security.secret import Secret

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

UNLIMITED: Final = 2**63 - 1
_KEY: Final = "setting"


class SettingsError(ValueError):
    """A setting has no valid value. The text names the key, its origin and the error."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting."""

    name: str
    default: object
    annotation: object
    help: str
    group: str
    unit: str
    low: float | None
    high: float | None
    pulsar_key: str
    values: Mapping[str, str]
    """Pulsar's values that have another name here, with that name."""
    aliases: tuple[str, ...]
    """Other keys of Pulsar or BookKeeper with the same meaning."""
    multiples: Mapping[str, int]
    """Other keys of Pulsar with a larger unit, and how many of ours it is. As in Pulsar, 0 and
    negative values of such a key mean "not set"."""
    off: bool
    """Whether `none`, or a Pulsar key without a value, turns it off: the value is None."""

    @property
    def foreign_keys(self) -> tuple[str, ...]:
        """All keys of Pulsar and BookKeeper for this setting."""
        own = (self.pulsar_key,) if self.pulsar_key else ()
        return (*own, *self.aliases, *self.multiples)

    @property
    def secret(self) -> bool:
        """Whether the value must never be shown."""
        return self.annotation is Secret or Secret in get_args(self.annotation)

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return "MAGNETAR_" + self.name.upper()

    @property
    def range_text(self) -> str:
        """`0 to 65535`, `at least 1`, or empty."""
        if self.low is not None and self.high is not None:
            return f"{self.low:.10g} to {self.high:.10g}"
        if self.low is not None:
            return f"at least {self.low:.10g}"
        return "" if self.high is None else f"at most {self.high:.10g}"


def setting(
    default: T,
    text: str,
    *,
    group: str,
    unit: str = "",
    within: tuple[float, float] | None = None,
    pulsar: str = "",
    values: Mapping[str, str] | None = None,
    aliases: tuple[str, ...] = (),
    multiples: Mapping[str, int] | None = None,
    off: bool = False,
) -> T:
    """Declares a dataclass field.

    `within`: the minimum and maximum of a number. `off`: whether it can be turned off.
    """
    low, high = within or (None, None)
    described = {
        "help": text, "group": group, "unit": unit, "low": low, "high": high,
        "pulsar_key": pulsar, "values": values or {}, "aliases": aliases,
        "multiples": multiples or {}, "off": off,
    }  # fmt: skip
    declared: T = field(default=default, metadata={_KEY: described})
    return declared


def group(cls: type[T]) -> T:
    """Declares the field of a group in the settings of a role; each setting has its default."""
    declared: T = field(default=cls())
    return declared


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a role or group by name, in the order of their declaration."""
    declared: dict[str, Setting] = {}
    for item in fields(cls):
        if _KEY in item.metadata:
            declared[item.name] = _described(item)
        else:
            declared |= settings_of(type(item.default))
    return declared


def values_of(settings: "DataclassInstance") -> dict[str, object]:
    """The values of a role's settings by name, in the order of `settings_of`."""
    return {item.name: value for item, value in _items(settings)}


def compose(cls: type[T], **values: object) -> T:
    """Builds the settings of a role or group from values by name; others have their defaults.

    Raises SettingsError for a name that the role does not have, and for a number out of range.
    """
    settings, unknown = _composed(cls, values)
    if unknown:
        raise SettingsError(f"there is no such setting: {', '.join(unknown)}")
    return settings


def checked(settings: "DataclassInstance") -> None:
    """Raises SettingsError if a number is out of its range."""
    for item, value in _items(settings):
        described = item.metadata[_KEY]
        low, high = described["low"], described["high"]
        if value is None or (low is None and high is None):
            continue
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = _described(item).range_text
            raise SettingsError(f"{item.name} is {value}; allowed: {allowed}")


def _described(item: "Field[object]") -> Setting:
    return Setting(
        name=item.name, default=item.default, annotation=item.type, **item.metadata[_KEY]
    )


def _items(settings: "DataclassInstance") -> "Iterator[tuple[Field[Any], Any]]":
    """Iterates over the fields of all settings, those of groups included, with their values."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if _KEY in item.metadata:
            yield item, value
        else:
            yield from _items(value)


def _composed(cls: type[T], values: Mapping[str, object]) -> tuple[T, dict[str, object]]:
    """Builds `cls` from its part of the values; returns it and the other values."""
    others, own = dict(values), {}
    for item in fields(cast("type[DataclassInstance]", cls)):
        if _KEY not in item.metadata:
            own[item.name], others = _composed(type(item.default), others)
        elif item.name in others:
            own[item.name] = others.pop(item.name)
    return cls(**own), others
