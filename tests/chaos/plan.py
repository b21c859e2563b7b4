"""Which fault comes next: random by seed, weighted, one process at a time."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come: after a quiet time, of a kind, to one process, for a while."""

    quiet_s: float
    kind: str
    """One of KINDS; of ADMIN_KINDS for the role `admin`."""
    role: str
    index: int
    """Which process of the role; for `admin` which topic, modulo their number."""
    lasts_s: float


KINDS = ("kill", "kill", "kill", "pause", "cut-in", "cut-out", "cut-both")
ADMIN = "admin"
ADMIN_KINDS = ("unload-topic", "unload-topic", "unload-bundle", "unload-namespace")
"""What an operator does by REST, again and again for a while."""
ROLES = ("broker", "broker", "broker", "bookie", "bookie", "bookie", "etcd", ADMIN, ADMIN, ADMIN)
WORKER = "worker"
ACCOUNT_ROLES = (
    *("broker", "broker", "broker", "broker", "bookie", "bookie", "bookie", "etcd"),
    *(ADMIN, WORKER),
)
"""Of the campaign of accounts: its workers die as well."""
INDEX_MAX = 1 << 16


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
            kind=chance.choice(ADMIN_KINDS if role == ADMIN else kinds),
            role=role,
            index=chance.randrange(INDEX_MAX if role == ADMIN else counts[role]),
            lasts_s=chance.uniform(*lasts_s),
        )
