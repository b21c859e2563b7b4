"""A job of Spark's as its processes, to be killed, stopped and woken one by one.

    magnetar job (Python)            the driver: these two
      └ java                         ┘
          ├ java, an executor        `local-cluster` only; in `local` the driver is the executor
          │   └ pyspark.daemon       one per kind of worker
          │       └ pyspark.daemon   a worker: it does the tasks
          └ …

All are of one session (`setsid`), which is how they are found, whoever their parents are by then.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

LOCAL: Final = "local[2]"
LOCAL_CLUSTER: Final = "local-cluster[2,1,1024]"
"""Two executors of one core and 1 GiB, each a process of its own."""
SETTINGS: Final = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "10s",
    "spark.network.timeoutInterval": "1s",
    "spark.task.maxFailures": "16",
}
"""An executor that falls silent is given up after seconds (Spark: two minutes), and a task may fail
as often as is struck in one run (Spark: four times)."""
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.interval": "100ms",
}
"""A task that is slow is begun on another executor as well."""
DRIVER_END_TIMEOUT_S: Final = 600.0
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
_DAEMON: Final = b"pyspark.daemon"


@dataclass(frozen=True)
class Process:
    """What /proc says of one that has not ended."""

    pid: int
    parent: int
    command: bytes


@dataclass(frozen=True)
class Executor:
    """A JVM, and the Python processes below it."""

    jvm: int
    daemons: tuple[int, ...]
    workers: tuple[int, ...]


def processes(session: int) -> dict[int, Process]:
    """Of the session, by pid."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            pid = int(stat.parent.name)
            found[pid] = Process(pid, int(fields[1]), command)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """To those that are there still."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class SparkJob:
    """`magnetar job ARGUMENT...`, in a session of its own; what it says goes to a file.

    `program` is another module, which takes `--no-progress`, `--master` and `--conf`, too.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        master: str,
        conf: Mapping[str, str],
        arguments: Iterable[str],
        program: Iterable[str] = ("magnetar.cli.main", "job"),
    ) -> None:
        self._directory = directory
        self._said = directory / f"job-{number}.log"
        command = [sys.executable, "-m", *program, *arguments]
        command += ["--no-progress", "--master", master]
        command += [f"--conf={name}={value}" for name, value in conf.items()]
        directory.mkdir(parents=True, exist_ok=True)
        with self._said.open("wb") as said:
            self._driver = subprocess.Popen(
                command,
                start_new_session=True,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=self._environment(),
            )

    def _environment(self) -> dict[str, str]:
        """Nothing is on the network, and JVMs that die young are not compiled well."""
        return os.environ | {
            "SPARK_HOME": str(self._spark_home()),
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def _spark_home(self) -> Path:
        """Spark as it is installed, by links: `local-cluster` writes its executors' folders, and
        what they say, below its home."""
        home = self._directory / "spark"
        if not home.exists():
            home.mkdir()
            for each in Path(pyspark.__path__[0]).iterdir():
                if each.name != "work":
                    (home / each.name).symlink_to(each)
        return home

    @property
    def over(self) -> bool:
        return self._driver.poll() is not None

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def wait(self) -> int:
        """The driver's exit code, once it has ended by itself."""
        return self._driver.wait(DRIVER_END_TIMEOUT_S)

    def executors(self) -> list[Executor]:
        """Those that are processes of their own."""
        there = processes(self._driver.pid)

        def daemons_of(parent: int) -> tuple[int, ...]:
            return tuple(
                each.pid
                for each in there.values()
                if each.parent == parent and _DAEMON in each.command
            )

        found = []
        for each in there.values():
            if _EXECUTOR in each.command:
                daemons = daemons_of(each.pid)
                workers = tuple(pid for daemon in daemons for pid in daemons_of(daemon))
                found.append(Executor(each.pid, daemons, workers))
        return found

    def kill_driver(self) -> None:
        """Its Python and its JVM, and not the executors."""
        there = processes(self._driver.pid)
        jvm = [
            each.pid
            for each in there.values()
            if each.parent == self._driver.pid and _EXECUTOR not in each.command
        ]
        send([self._driver.pid, *jvm], signal.SIGKILL)
        self._driver.wait()

    def kill(self) -> None:
        """Every process of the session, also those that have made groups of their own."""
        while there := processes(self._driver.pid):
            send(there, signal.SIGKILL)
            self._driver.poll()
        self._driver.wait()
