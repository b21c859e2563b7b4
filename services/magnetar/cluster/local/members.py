"""The members of a local cluster: their names, ports and command lines."""

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from magnetar.cluster.local.process import ProcessId


class Role(StrEnum):
    """The role of a member; in the order of the start."""

    ETCD = "etcd"
    BOOKIE = "bookie"
    BROKER = "broker"
    AUTORECOVERY = "autorecovery"


PORT_KINDS: Final = {
    Role.ETCD: ("client", "peer"),
    Role.BOOKIE: ("port", "http"),
    Role.BROKER: ("port", "http"),
    Role.AUTORECOVERY: ("http",),
}


class Member(msgspec.Struct, omit_defaults=True):
    """A member of the cluster, running or not."""

    name: str
    role: Role
    number: int
    host: str
    ports: dict[str, int]
    process: ProcessId | None = None
    flags: list[str] = []
    """Additional words of its command line."""

    @property
    def address(self) -> str:
        """The host and port for clients of the member."""
        port = next(iter(self.ports.values()))
        return f"{self.host}:{port}"

    @property
    def http_url(self) -> str:
        """The URL of the member's health endpoints."""
        return f"http://{self.host}:{self.ports['client' if self.role is Role.ETCD else 'http']}"

    @property
    def ready_url(self) -> str:
        """The URL of the member's readiness probe."""
        return self.http_url + ("/health" if self.role is Role.ETCD else "/readyz")


def metadata_url(members: Iterable[Member]) -> str:
    """Returns the setting `metadata_url` of all members."""
    urls = [member.http_url for member in members if member.role is Role.ETCD]
    return "etcd:" + ",".join(urls)


def command(
    member: Member, members: Iterable[Member], directory: Path, cluster_name: str, config: Path
) -> list[str]:
    """Returns the command line of a broker, a bookie or autorecovery."""
    words = [
        *(sys.executable, "-m", "magnetar.cli.main", member.role.value),
        *("--metadata-url", metadata_url(members), "--cluster-name", cluster_name),
        *("--host", member.host, "--http-port", str(member.ports["http"])),
        *("--log-format", "console"),
    ]
    if member.role is not Role.AUTORECOVERY:
        words += ["--port", str(member.ports["port"])]
    if member.role is Role.BOOKIE:
        words += ["--bookie-id", member.name, "--data-dir", str(directory / member.name)]
    if config.exists():
        words += ["--config", str(config)]
    return words + member.flags
