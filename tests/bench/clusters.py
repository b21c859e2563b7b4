"""The two clusters of a comparison: three bookies, two brokers and a metadata store each.

Magnetar's is `magnetar cluster` of this checkout over a real etcd; Pulsar's comes from the kit's
`cluster-start.sh`, with ZooKeeper and bookies that fsync, as Magnetar's always do.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.bench.servers import wait_ready
from tests.support.cluster_processes import kill_all

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Role

BOOKIES = 3
BROKERS = 2


class MagnetarCluster:
    """Processes of this checkout. `quorum` is ensemble, write quorum, ack quorum."""

    def __init__(self, root: Path, quorum: str) -> None:
        ensemble, write, ack = quorum.split()
        self.name = "magnetar"
        self.directory = root / "magnetar-cluster"
        self.cluster = LocalCluster.create(
            self.directory,
            bookies=BOOKIES,
            brokers=BROKERS,
            base="free",
            settings={
                "managedLedgerDefaultEnsembleSize": ensemble,
                "managedLedgerDefaultWriteQuorum": write,
                "managedLedgerDefaultAckQuorum": ack,
            },
        )
        first = self.cluster.named(Role.BROKER)[0]
        self.port, self.http_port = first.ports["port"], first.ports["http"]
        self.port_tls = 0
        self.pids: dict[str, int] = {}

    @property
    def service_url(self) -> str:
        return self.cluster.service_url

    def start(self) -> float:
        started = time.monotonic()
        self.cluster.up()
        seconds = wait_ready(self.http_port, started, None)
        self._find()
        return seconds

    def _find(self) -> None:
        self.pids = {
            member.name.replace("-", ""): member.process.pid
            for member in self.cluster.members
            if member.process is not None
        }

    def kill(self, name: str) -> None:
        """SIGKILL to a process of `pids`."""
        os.kill(self.pids[name], signal.SIGKILL)

    def restart(self, name: str) -> None:
        """Starts a killed process, and waits until it is ready."""
        member = next(m for m in self.cluster.members if m.name.replace("-", "") == name)
        self.cluster.start(member.name)
        self.cluster.wait_ready([member.name])
        self._find()

    def broker_of(self, port: int) -> str:
        """The process that listens on this binary port."""
        for member in self.cluster.named(Role.BROKER):
            if member.ports["port"] == port:
                return member.name.replace("-", "")
        raise KeyError(port)

    def stop(self) -> None:
        kill_all(self.cluster)


class PulsarCluster:
    """The kit's cluster. Its bookies fsync before they answer; Pulsar's standalone does not."""

    def __init__(
        self,
        kit: Path,
        root: Path,
        quorum: str,
        port: int,
        http_port: int,
        *,
        bookies: int = BOOKIES,
        brokers: int = BROKERS,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`settings` are of the brokers, by Pulsar's names."""
        self.name = "pulsar"
        self.kit, self.data_dir, self.quorum = kit, root / "pulsar-cluster", quorum
        self._bookies, self._brokers, self._settings = bookies, brokers, settings
        self.port, self.http_port = port, http_port
        self.port_tls = 0
        self.pids: dict[str, int] = {}

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(f"127.0.0.1:{self.port + i}" for i in range(self._brokers))

    def start(self) -> float:
        started = time.monotonic()
        self._run()
        return time.monotonic() - started

    def _run(self, **more: str) -> None:
        subprocess.run(
            [
                *(str(self.kit / "cluster-start.sh"), str(self.data_dir)),
                *("--bookies", str(self._bookies), "--brokers", str(self._brokers)),
            ],
            env={
                **os.environ,
                "PULSAR_PORT": str(self.port),
                "HTTP_PORT": str(self.http_port),
                "QUORUM": self.quorum,
                "BROKER_CONF": " ".join(f"{key}={value}" for key, value in self._settings.items()),
                **more,
            },
            check=True,
            stdout=subprocess.DEVNULL,
        )
        lines = (self.data_dir / "pids").read_text().splitlines()
        self.pids = {name: int(pid) for name, pid in (line.split() for line in lines)}

    def kill(self, name: str) -> None:
        """SIGKILL to a process of `pids`."""
        os.kill(self.pids[name], signal.SIGKILL)
        # It is no child of this process: it has ended once its id does not exist.
        while Path(f"/proc/{self.pids[name]}/fd").exists() and _alive(self.pids[name]):
            time.sleep(0.01)

    def restart(self, name: str) -> None:
        """Starts a killed process."""
        self._run(START=name)

    def broker_of(self, port: int) -> str:
        """The process that listens on this binary port."""
        return f"broker{port - self.port + 1}"

    def stop(self) -> None:
        subprocess.run([str(self.kit / "cluster-stop.sh"), str(self.data_dir)], check=False)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"
