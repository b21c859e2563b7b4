"""What one setting is: its default, unit, range, Pulsar's name for it and a sentence.

Settings are plain dataclasses. `setting()` puts what the validation, the command `magnetar config
explain` and `docs/configuration.md` need beside each field: one description, nothing repeated.
`checked` holds a built object to its ranges, whichever way it was built.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, TypeVar

T = TypeVar("T")

UNLIMITED: Final = 2**63 - 1
_KEY: Final = "setting"


class SettingsError(ValueError):
    """A setting has no valid value. The text names the key, where it was set, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything known of one setting but its value."""

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
    """Pulsar's spellings of values whose names differ here."""
    aliases: tuple[str, ...]
    """Other keys of Pulsar's or BookKeeper's that mean the same."""

    @property
    def foreign_keys(self) -> tuple[str, ...]:
        """All keys of Pulsar's and BookKeeper's that set it."""
        return (self.pulsar_key, *self.aliases) if self.pulsar_key else self.aliases

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
    low: float | None = None,
    high: float | None = None,
    pulsar: str = "",
    values: Mapping[str, str] | None = None,
    aliases: tuple[str, ...] = (),
) -> T:
    """A dataclass field with its description."""
    described = {
        "help": text, "group": group, "unit": unit, "low": low, "high": high,
        "pulsar_key": pulsar, "values": values or {}, "aliases": aliases,
    }  # fmt: skip
    made: T = field(default=default, metadata={_KEY: described})
    return made


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a settings class by name, in their order."""
    found: dict[str, Setting] = {}
    for item in fields(cls):
        found[item.name] = _described(item)
    return found


def _described(item: "Field[Any]") -> Setting:
    return Setting(
        name=item.name, default=item.default, annotation=item.type, **item.metadata[_KEY]
    )


def checked(settings: object) -> None:
    """Raises SettingsError where a number is out of its range."""
    for item in fields(settings):  # type: ignore[arg-type]
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
