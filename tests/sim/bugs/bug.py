"""What a planted bug is, and how it is planted."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.plan import Plan

Patch = Callable[[], None]
Lean = Callable[[Plan], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug."""

    name: str
    story: str
    """The mistake and its consequence, with the system that made it."""
    patch: Patch
    seed: int
    """The first seed that finds it."""
    lean: Lean | None = None
    hunted: bool = False
    """Found by so few seeds that `--prove` leaves it to `--hunt`."""


def plant(owner: object, name: str, value: object) -> None:
    """Puts `value` in the place of something of the product's, which must be there."""
    getattr(owner, name)
    setattr(owner, name, value)
