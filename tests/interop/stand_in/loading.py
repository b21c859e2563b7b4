"""Loads tests of the official client a second time, with `magnetar.pulsar` in its place.

The source of a module is run again in this package, so that its relative imports find the
neighbors here: `support.py` is loaded in the same way, `conftest.py` has the fixtures.
"""

import sys
from pathlib import Path

import magnetar.pulsar
import magnetar.pulsar.asyncio
import magnetar.pulsar.exceptions
import magnetar.pulsar.schema

PACKAGE = "tests.interop.stand_in"
FOLDER = Path(__file__).parent.parent
MODULES = {
    "pulsar": magnetar.pulsar,
    "pulsar.asyncio": magnetar.pulsar.asyncio,
    "pulsar.exceptions": magnetar.pulsar.exceptions,
    "pulsar.schema": magnetar.pulsar.schema,
}


def definitions_of(name: str) -> dict[str, object]:
    """Returns what a module of the interop tests defines, on the stand-in."""
    path = FOLDER / f"{name}.py"
    # Dataclasses look for the module of their class.
    names: dict[str, object] = {"__name__": PACKAGE, "__package__": PACKAGE, "__file__": str(path)}
    replaced = {module: sys.modules.get(module) for module in MODULES}
    sys.modules.update(MODULES)
    try:
        exec(compile(path.read_text(), str(path), "exec"), names)  # noqa: S102  # our own tests
    finally:
        for module, official in replaced.items():
            if official is None:
                del sys.modules[module]
            else:
                sys.modules[module] = official
    assert names["pulsar"] is magnetar.pulsar
    return {key: value for key, value in names.items() if not key.startswith("__")}
