"""Which fault comes next: random by seed, weighted, one process at a time."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come: after a quiet time, of a kind, to one process, for a while."""

    quiet_s: float
    kind: str
    """`kill`, `pause`, `cut-in`, `cut-out` or `cut-both`."""
    role: str
    index: int
    lasts_s: float


KINDS = ("kill", "kill", "kill", "pause", "cut-in", "cut-out", "cut-both")
ROLES = ("broker", "broker", "broker", "bookie", "bookie", "bookie", "etcd")


def plan(
    seed: int,
    counts: dict[str, int],
    *,
    quiet_s: Sequence[float],
    lasts_s: Sequence[float],
    kinds: Sequence[str] = KINDS,
    roles: Sequence[str] = ROLES,
) -> Iterator[Planned]:
    """Faults without end. `counts` says how many processes there are of each role."""
    chance = random.Random(seed)
    while True:
        role = chance.choice(roles)
        yield Planned(
            quiet_s=chance.uniform(*quiet_s),
            kind=chance.choice(kinds),
            role=role,
            index=chance.randrange(counts[role]),
            lasts_s=chance.uniform(*lasts_s),
        )
