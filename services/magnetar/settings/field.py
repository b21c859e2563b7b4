"""Declares settings: fields of dataclasses with unit, range, Pulsar's key and a description.

`setting()` stores this metadata in the field. Validation, `magnetar config explain` and
`docs/run/configuration.md` all use it, so nothing is declared twice. `checked` verifies the ranges
of a settings object, however it was built.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Final, TypeVar, dataclass_transform, get_args

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
    off: bool
    """Whether `none`, or a Pulsar key without a value, turns it off: the value is None."""

    @property
    def foreign_keys(self) -> tuple[str, ...]:
        """All keys of Pulsar and BookKeeper for this setting."""
        return (self.pulsar_key, *self.aliases) if self.pulsar_key else self.aliases

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


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def settings_part(cls: type[T]) -> type[T]:
    """Declares a class of settings that only its subclasses, which are dataclasses, create.

    It has no methods of its own for comparison and printing: each would cost a start 0.3 ms.
    """
    return dataclass(cls, frozen=True, kw_only=True, init=False, repr=False, eq=False)


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
    off: bool = False,
) -> T:
    """Declares a dataclass field.

    `within`: the minimum and maximum of a number. `off`: whether it can be turned off.
    """
    low, high = within or (None, None)
    described = {
        "help": text, "group": group, "unit": unit, "low": low, "high": high,
        "pulsar_key": pulsar, "values": values or {}, "aliases": aliases,
        "off": off,
    }  # fmt: skip
    declared: T = field(default=default, metadata={_KEY: described})
    return declared


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a settings class by name, in the order of their declaration."""
    return {item.name: _described(item) for item in fields(cls)}


def _described(item: "Field[object]") -> Setting:
    return Setting(
        name=item.name, default=item.default, annotation=item.type, **item.metadata[_KEY]
    )


def checked(settings: "DataclassInstance") -> None:
    """Raises SettingsError if a number is out of its range."""
    for item in fields(settings):
        described = item.metadata[_KEY]
        low, high = described["low"], described["high"]
        if low is None and high is None:
            continue
        value = getattr(settings, item.name)
        if value is None:
            continue
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = _described(item).range_text
            raise SettingsError(f"{item.name} is {value}; allowed: {allowed}")
