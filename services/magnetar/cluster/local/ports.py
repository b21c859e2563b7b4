"""The ports of a local cluster: the standard ones, a range from a base, or random free ones.

Random ports are below the kernel's range for outgoing connections, so that the port of a killed
process is still free when the process restarts.
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
"""The port of the first member of each role; each further member has the next port."""

MEMBERS_PER_ROLE_MAX: Final = 20
BASE_OFFSETS: Final = {key: number * MEMBERS_PER_ROLE_MAX for number, key in enumerate(STANDARD)}
"""The offset of each range from the base."""


def is_free(host: str, port: int) -> bool:
    """Whether a process could listen on the port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose(base: str, role: str, kind: str, number: int, host: str, taken: Collection[int]) -> int:
    """Returns the port of this kind for member `number` (from 1) of a role.

    `base` is `standard`, `free` or a number. Raises Conflict if the port is in use.
    """
    if base == "free":
        rng = random.Random()
        for _ in range(DRAWS_MAX):
            port = rng.randint(FREE_FIRST, FREE_LAST)
            if port not in taken and is_free(host, port):
                return port
        raise Conflict(f"no free port in {DRAWS_MAX} random draws")
    if base == "standard":
        port = STANDARD[role, kind] + number - 1
    else:
        port = int(base) + BASE_OFFSETS[role, kind] + number - 1
    if port in taken or not is_free(host, port):
        raise Conflict(
            f"port {port} on {host}, for {role}-{number}, is in use: "
            "choose others with --base (a number, or free)"
        )
    return port
