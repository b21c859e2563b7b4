"""Checks of arguments, with the official client's error: a ValueError that names the argument."""

import warnings
from collections.abc import Mapping
from typing import Any


def check_type(kind: type | tuple[type, ...], value: object, name: str) -> None:
    """Raises ValueError if an argument has another type."""
    if not isinstance(value, kind):
        raise ValueError(f"Argument {name} must be {_named(kind)}, not {type(value).__name__}")


def check_type_or_none(kind: type | tuple[type, ...], value: object, name: str) -> None:
    """Raises ValueError if an argument is neither None nor of the type."""
    if value is not None and not isinstance(value, kind):
        raise ValueError(
            f"Argument {name} must be None or {_named(kind)}, not {type(value).__name__}"
        )


def check_types(types: Mapping[str, Any], values: Mapping[str, object]) -> None:
    """Checks arguments by name; a type in a list permits None as well."""
    for name, kind in types.items():
        if isinstance(kind, list):
            check_type_or_none(kind[0], values[name], name)
        else:
            check_type(kind, values[name], name)


def _named(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(f"of type {item.__name__}" for item in kinds)


class OptionHasNoEffect(UserWarning):
    """An option of the official client tunes a part that this client does not have."""


def warn_of_options(
    values: Mapping[str, object], defaults: Mapping[str, tuple[Any, str]], frames: int = 5
) -> None:
    """Warns of each option that has not its default, with the reason why it has no effect.

    The warning names the line of the program, `frames` above. A decorator is one of them.
    """
    for name, (default, reason) in defaults.items():
        if values[name] != default:
            warnings.warn(f"{name} has no effect: {reason}", OptionHasNoEffect, stacklevel=frames)
