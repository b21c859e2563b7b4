"""Converts values from flags, environment and files to the types of their settings.

All errors are reported together, each with the origin of the value. A setting is a bool, a number,
a text, a secret, a path, one of several words, a tuple of these, or not set. A validation library
would cost every process 20 MiB and 200 ms of its start; a bookie takes 35 MiB.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from magnetar.security.secret import MASK, Secret
from magnetar.settings.field import Setting, SettingsError, compose, settings_of

T = TypeVar("T")

OFF: Final = frozenset(("", "none"))
"""Turns off a setting that can be turned off. Pulsar turns a port off by a key without a value."""
_TRUE: Final = frozenset(("true", "yes", "on", "1"))
_FALSE: Final = frozenset(("false", "no", "off", "0"))


def validate(
    cls: type[T], sources: Sequence[Mapping[str, object]], origins: Mapping[str, str]
) -> T:
    """Builds the settings class `cls` from the sources, highest precedence first."""
    settings = settings_of(cls)
    merged: dict[str, object] = {}
    for source in reversed(sources):
        merged |= source
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in merged.items():
        if name not in settings:
            problems.append(f"{name}: there is no such setting")
            continue
        try:
            values[name] = within(settings[name], converted(settings[name], value))
        except ValueError as error:
            origin = f" ({origins[name]})" if name in origins else ""
            shown = MASK if settings[name].secret else _shown(value)
            problems.append(f"{name} is {shown}{origin}: {error}")
    if problems:
        raise SettingsError("; ".join(problems))
    return compose(cls, **values)


def _shown(value: object) -> str:
    """A number as it was given, in a file or as text."""
    number = isinstance(value, str) and value.strip().lstrip("-").isdigit()
    return str(value) if number else repr(value)


def converted(setting: Setting, value: object) -> object:
    """Converts the value to the setting's type; raises ValueError that describes valid values."""
    if setting.off and isinstance(value, str) and value.strip().lower() in OFF:
        return None
    return _converted(setting.annotation, setting.values, value)


def _converted(annotation: object, words: Mapping[str, str], value: object) -> object:
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        (kind,) = (member for member in get_args(annotation) if member is not NoneType)
        return None if value is None else _converted(kind, words, value)
    origin = get_origin(annotation)
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise ValueError("should be a list")
        stripped = [part.strip() if isinstance(part, str) else part for part in parts]
        kind = get_args(annotation)[0]
        return tuple(_converted(kind, words, part) for part in stripped if part != "")
    if origin is Literal:
        word = words.get(value, value) if isinstance(value, str) else value
        if word not in get_args(annotation):
            raise ValueError(f"should be one of {', '.join(map(str, get_args(annotation)))}")
        return word
    if annotation is bool:
        return _as_bool(value)
    if annotation is int or annotation is float:
        return _as_number(value, annotation is int)
    if annotation is Path and isinstance(value, str | Path):
        return Path(value)
    if annotation is str and isinstance(value, str):
        return value
    if annotation is Secret and isinstance(value, str | Secret):
        return Secret(value) if isinstance(value, str) else value
    raise ValueError("should be text")


def _as_bool(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("should be true or false")
    return word in _TRUE


def _as_number(value: object, whole: bool) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("should be a number")
    try:
        number = int(value) if whole and isinstance(value, str) else float(value)
    except ValueError:
        raise ValueError(f"should be a {'whole ' if whole else ''}number") from None
    if not math.isfinite(number):
        raise ValueError("should be a number")
    if whole:
        if number != int(number):
            raise ValueError("should be a whole number")
        return int(value)
    return number


def multiple(value: object, unit: int, origin: str) -> int | None:
    """The number in our unit, or None if it is not positive; raises SettingsError without one."""
    try:
        number = _as_number(value, whole=False)
    except ValueError as error:
        raise SettingsError(f"{origin} is {_shown(value)}: {error}") from None
    return int(number * unit) if number > 0 else None


def within(setting: Setting, value: object) -> object:
    """Returns the value; raises ValueError if it is a number out of the setting's range."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = setting.low, setting.high
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(f"allowed: {setting.range_text}")
    return value
