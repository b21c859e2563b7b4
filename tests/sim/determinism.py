"""What makes a seed decide everything, where the code under test leaves something open.

Two things would differ between runs of one seed. `Random()` without a seed is seeded by the kernel:
`install` puts a class in its place that is seeded by the run, and must be called before the
product's modules are imported, as they import the name. And a set of objects without a hash of
their own is ordered by where they lie in memory: `hash_by_birth` orders those of a class by when
they were first put into one.
"""

import itertools
import random
import uuid
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

_unseeded = itertools.count()
_base = 0


class SeededRandom(Random):
    """Where no seed is given, the next one of the run."""

    def __init__(self, x: Any = None) -> None:
        super().__init__(_base * 1_000_003 + next(_unseeded) if x is None else x)

    def __new__(cls, *_: Any) -> "SeededRandom":
        made: SeededRandom = Random.__new__(cls)
        return made


def install() -> None:
    """Before anything of the product is imported."""
    random.Random = SeededRandom  # type: ignore[misc]


def begin(seed: int) -> None:
    """A run of that seed begins."""
    global _base, _unseeded
    _base, _unseeded = seed, itertools.count()
    random.seed(seed)
    bits = Random(seed ^ 0x1D)
    uuid.uuid4 = lambda: uuid.UUID(int=bits.getrandbits(128), version=4)


_births = itertools.count(1)
_known: dict[int, tuple[Callable[[], object], int]] = {}


def _birth(self: object) -> int:
    key = id(self)
    known = _known.get(key)
    if known is not None and known[0]() is self:
        return known[1]
    number = next(_births)
    try:
        refers: Callable[[], object] = weakref.ref(self, lambda _: _known.pop(key, None))
    except TypeError:
        # Kept for the run: another object at its place would take it for itself.
        refers = lambda: self  # noqa: E731
    _known[key] = refers, number
    return number


def hash_by_birth(*classes: type) -> None:
    """Sets of these are ordered as they were filled."""
    for cls in classes:
        cls.__hash__ = _birth  # type: ignore[assignment,method-assign]
