"""Ports for a local cluster: the usual ones, a row from a base, or any that are free.

Free ones are drawn below the range from which the kernel serves outgoing connections, so that a
process that is killed finds its port free when it is started again.
"""

import random
import socket
from collections.abc import Collection
from typing import Final

from magnetar.core.errors import Conflict

FREE_FIRST: Final = 10_240
FREE_LAST: Final = 32_000
DRAWS_MAX: Final = 1_000

STANDARD: Final = {
    ("etcd", "client"): 2379,
    ("etcd", "peer"): 2479,
    ("bookie", "port"): 3181,
    ("bookie", "http"): 8000,
    ("broker", "port"): 6650,
    ("broker", "http"): 8080,
    ("autorecovery", "http"): 8180,
}
"""Of the first of its role; the second has the next."""

BASE_OFFSETS: Final = {key: number * 20 for number, key in enumerate(STANDARD)}
MEMBERS_PER_ROLE_MAX: Final = 20


def is_free(host: str, port: int) -> bool:
    """Whether one could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose(base: str, role: str, kind: str, number: int, host: str, taken: Collection[int]) -> int:
    """The port of this kind for member `number` (from 1) of a role.

    `base` is `standard`, `free` or a number. Raises Conflict where the one to be had is in use.
    """
    if base == "free":
        rng = random.Random()
        for _ in range(DRAWS_MAX):
            port = rng.randint(FREE_FIRST, FREE_LAST)
            if port not in taken and is_free(host, port):
                return port
        raise Conflict(f"no free port found in {DRAWS_MAX} draws")
    if base == "standard":
        port = STANDARD[role, kind] + number - 1
    else:
        port = int(base) + BASE_OFFSETS[role, kind] + number - 1
    if port in taken or not is_free(host, port):
        raise Conflict(
            f"port {port} on {host}, for {role}-{number}, is in use: "
            "take others with --base (a number, or free)"
        )
    return port
