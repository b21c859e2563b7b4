"""Compares a manifest with the object that the API server stores. Pure: no IO.

Only fields of the manifest count, not those that the server or other managers add. Quantities are
equal if they are the same amount. Lists are compared item by item, so an additional item is a
difference.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

DIFFERENCES_MAX: Final = 20
VALUE_CHARACTERS_MAX: Final = 80

_QUANTITY: Final = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$")
_POWERS: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}  # fmt: skip


def differences(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """The differences as `path: live → wanted`, at most DIFFERENCES_MAX."""
    return list(itertools.islice(_walk("", wanted, live), DIFFERENCES_MAX))


def amount(value: object) -> Decimal | None:
    """The amount of a Kubernetes quantity; None if the value is no quantity."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    parts = _QUANTITY.match(str(value))
    if parts is None:
        return None
    return Decimal(parts[1]) * _POWERS[parts[2] or ""]


def _walk(path: str, wanted: object, live: object) -> Iterator[str]:
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            if wanted:
                yield _text(path, live, wanted)
            return
        for key, value in wanted.items():
            yield from _walk(f"{path}.{key}" if path else str(key), value, live.get(key))
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if live is None and not wanted:
            return
        if not isinstance(live, Sequence) or isinstance(live, str) or len(live) != len(wanted):
            yield _text(path, live, wanted)
            return
        for index, (item, other) in enumerate(zip(wanted, live, strict=True)):
            yield from _walk(f"{path}[{index}]", item, other)
    elif not _equal(wanted, live):
        yield _text(path, live, wanted)


def _equal(wanted: object, live: object) -> bool:
    if wanted == live:
        return True
    if live is None:
        # The server does not store empty values.
        return wanted in ("", 0, False)
    first, second = amount(wanted), amount(live)
    return first is not None and first == second


def _text(path: str, live: object, wanted: object) -> str:
    def short(value: object) -> str:
        text = "nothing" if value is None else str(value)
        return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}…"

    return f"{path}: {short(live)} → {short(wanted)}"
