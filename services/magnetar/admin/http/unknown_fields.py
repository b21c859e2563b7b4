"""Refusal of fields that a request's body must not have: an unknown one would have no effect.

Pulsar ignores them unless `httpRequestsFailOnUnknownPropertiesEnabled` is set (PIP-179), so that a
misspelled policy answers 204 and changes nothing.
"""

import difflib
from collections.abc import Collection
from typing import Final, NoReturn

import msgspec
from starlette.exceptions import HTTPException

LISTED_MAX: Final = 12
"""The known names that an error lists; of more it lists those like the given one."""


def refuse(name: str, known: Collection[str], where: str = "") -> NoReturn:
    """Raises 400 with the field's name, its path `where`, and known names."""
    path = f" of {where}" if where else ""
    names = sorted(known)
    if len(names) > LISTED_MAX:
        names = difflib.get_close_matches(name, names)
    hint = f": known are {', '.join(names)}" if names else ""
    raise HTTPException(400, f'Unrecognized field "{name}"{path}{hint}')


def check(given: object, value: object, where: str = "") -> None:
    """Raises 400 for a field of `given`, parsed JSON, that no struct of `value` has.

    `value` is what msgspec made of `given`. A null counts as missing.
    """
    if isinstance(value, msgspec.Struct) and isinstance(given, dict):
        fields = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        for name, entry in given.items():
            if name in fields:
                check(entry, getattr(value, fields[name]), f"{where}.{name}" if where else name)
            elif entry is not None:
                refuse(name, fields, where)
    elif isinstance(value, list) and isinstance(given, list):
        for entry, item in zip(given, value, strict=True):
            check(entry, item, where)
    elif isinstance(value, dict) and isinstance(given, dict):
        for name in value.keys() & given.keys():
            check(given[name], value[name], f"{where}.{name}" if where else str(name))
