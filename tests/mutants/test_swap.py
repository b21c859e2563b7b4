"""A mutant's code reaches every live function of its file, however it is kept."""

import asyncio
import functools
import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.mutants.mutation import Mutation, mutations_of
from tests.mutants.swap import LiveFunctions

SOURCE = """
import functools

def plain(a, b):
    return a < b

def wrapped(function):
    @functools.wraps(function)
    def caller(a, b):
        return function(a, b) if a >= 0 else None
    return caller

@wrapped
def decorated(a, b):
    return a > b

class Thing:
    @staticmethod
    def static(a, b):
        return a == b

    @property
    def is_small(self):
        return len(self.items) <= 1

    items = ()

    async def later(self, a, b):
        return [each async for each in self.each(a) if each != b]

    async def each(self, a):
        for one in range(a):
            yield one
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "mutated_module.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mutated_module", file)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["mutated_module"] = found
    spec.loader.exec_module(found)
    yield found
    del sys.modules["mutated_module"]


def mutant(folder: Path, before: str, after: str) -> Mutation:
    mutations = mutations_of(folder / "mutated_module.py", folder)
    (found,) = [each for each in mutations if (each.before, each.after) == (before, after)]
    return found


@pytest.mark.parametrize(
    ("before", "after", "call"),
    [
        ("a < b", "a <= b", lambda module: module.plain(1, 1)),
        ("a > b", "a >= b", lambda module: module.decorated(1, 1)),
        ("a >= 0", "a > 0", lambda module: module.decorated(0, 1)),
        ("a == b", "a != b", lambda module: module.Thing.static(1, 1)),
        ("len(self.items) <= 1", "len(self.items) > 1", lambda module: module.Thing().is_small),
        ("each != b", "each == b", lambda module: asyncio.run(module.Thing().later(3, 1))),
    ],
)
def test_live_functions_change(
    module: ModuleType, tmp_path: Path, before: str, after: str, call: Any
) -> None:
    kept = functools.partial(call, module)
    right = kept()
    assert LiveFunctions().install(mutant(tmp_path, before, after).compiled()) >= 1
    assert kept() != right


@pytest.mark.usefixtures("module")
def test_functions_of_other_files_stay(tmp_path: Path) -> None:
    live = {name: each.__code__ for name, each in vars(functools).items() if callable(each)
            and hasattr(each, "__code__")}  # fmt: skip
    LiveFunctions().install(mutant(tmp_path, "a < b", "a <= b").compiled())
    assert all(vars(functools)[name].__code__ is code for name, code in live.items())


def test_functions_that_a_package_before_has_frozen_change(
    module: ModuleType, tmp_path: Path
) -> None:
    """A campaign of several packages freezes what is live before each of them."""
    gc.freeze()
    try:
        assert LiveFunctions().install(mutant(tmp_path, "a < b", "a <= b").compiled()) >= 1
    finally:
        gc.unfreeze()
    assert module.plain(1, 1)
