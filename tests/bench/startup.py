"""`python -m tests.bench.startup`: the cost of a start of the standalone, and of an idle one.

Two starts a run, each on an empty data directory. The first is polled on the binary port until
CONNECTED arrives, idles, and then gets a REST request. The second is polled over REST from the
beginning. CPU is user and system time of the server's process, all threads, in nanoseconds; it
varies less than wall-clock time. `--imports` and `--memory` break time and memory down by package.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.bench.servers import MagnetarServer, memory_mib, wait_ready
from tests.support.server_process import held_port

from magnetar.wire._pb.PulsarApi_pb2 import BaseCommand, CommandConnect
from magnetar.wire.encoder import encode_command

SERVER_MODULES = "import magnetar.cli.main, magnetar.cli.standalone, magnetar.standalone.server"
READY_TIMEOUT_S = 60.0
POLL_S = 0.002
IDLE_S = 1.5
LINES_MAX = 30

FIGURES = {
    "port_cpu_ms": "binary port serves: CPU, ms",
    "port_s": "binary port serves: wall clock, s",
    "rest_cpu_ms": "first REST answer: CPU, ms",
    "rest_s": "first REST answer: wall clock, s",
    "idle_mib": "idle, before the first REST request: resident MiB",
    "rest_mib": "after it: resident MiB",
}
"""What `run` measures, in the order of the table."""


def cpu_ms(pid: int) -> float:
    """CPU time of a process: the clock that Linux's clock_getcpuclockid names for it."""
    return time.clock_gettime((~pid << 3) | 2) * 1_000


def wait_connected(port: int, started: float) -> float:
    """Connects until the broker answers CONNECT; the seconds since `started`."""
    connect = CommandConnect(client_version="startup", protocol_version=21)
    frame = encode_command(BaseCommand.CONNECT, connect)
    while time.monotonic() - started < READY_TIMEOUT_S:
        try:
            with socket.create_connection(("127.0.0.1", port), READY_TIMEOUT_S) as connection:
                connection.sendall(frame)
                if connection.recv(64):
                    return time.monotonic() - started
        except ConnectionError:
            time.sleep(POLL_S)
    raise SystemExit(f"the binary port did not serve within {READY_TIMEOUT_S} s")


Process = subprocess.Popen[bytes]


def started(measure: Callable[[MagnetarServer, Process], dict[str, float]]) -> dict[str, float]:
    """Starts a server on an empty directory, measures it and kills it."""
    # Ports that are merely free could be given to a polling connection, which then has itself as
    # its peer and keeps the server from binding.
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-startup-") as root,
        closing(held_port("127.0.0.1")) as binary,
        closing(held_port("127.0.0.1")) as http,
    ):
        server = MagnetarServer(Path(root), binary.getsockname()[1], http.getsockname()[1])
        process = server.launch()
        try:
            return measure(server, process)
        except SystemExit:
            print(Path(root, "magnetar.log").read_text(), file=sys.stderr)
            raise
        finally:
            server.stop()


def port_first(server: MagnetarServer, process: Process) -> dict[str, float]:
    port_s = wait_connected(server.port, time.monotonic())
    row = {"port_s": port_s, "port_cpu_ms": cpu_ms(process.pid)}
    time.sleep(IDLE_S)
    row["idle_mib"], _ = memory_mib(server)
    wait_ready(server.http_port, time.monotonic(), process)
    row["rest_mib"], _ = memory_mib(server)
    return row


def rest_first(server: MagnetarServer, process: Process) -> dict[str, float]:
    rest_s = wait_ready(server.http_port, time.monotonic(), process)
    return {"rest_s": rest_s, "rest_cpu_ms": cpu_ms(process.pid)}


def run() -> dict[str, float]:
    """One row: figures by name."""
    return started(port_first) | started(rest_first)


def print_table(rows: list[dict[str, float]]) -> None:
    print("| | median | least | most |\n|---|---|---|---|")
    for figure, text in FIGURES.items():
        values = [row[figure] for row in rows]
        digits = 0 if figure.endswith("_ms") else 2 if figure.endswith("_s") else 1
        cells = (statistics.median(values), min(values), max(values))
        print(f"| {text} | " + " | ".join(f"{cell:.{digits}f}" for cell in cells) + " |")


def package_of(module: str) -> str:
    """`magnetar.broker` of its modules; the top package of all others."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "magnetar" else parts[0]


def print_packages(values: dict[str, float], unit: str) -> None:
    """Sums by package, the largest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for module, value in values.items():
        sums[package_of(module)] += value
        counts[package_of(module)] += 1
    print(f"{sum(values.values()):10.1f} {unit} {len(values):4} modules")
    for package in sorted(sums, key=sums.__getitem__, reverse=True)[:LINES_MAX]:
        print(f"{sums[package]:10.1f} {unit} {counts[package]:4} {package}")


def print_imports() -> None:
    """Milliseconds of importing what a start imports, by package (`-X importtime`)."""
    command = [sys.executable, "-X", "importtime", "-c", SERVER_MODULES]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    times: dict[str, float] = {}
    for line in lines[1:]:
        own_us, _, module = line.removeprefix("import time:").split("|")
        times[module.strip()] = int(own_us) / 1_000
    print_packages(times, "ms")


MEASURE_MEMORY = f"""
import collections, importlib._bootstrap_external as external, json, tracemalloc
own, nested = collections.Counter(), [0]
execute = external.SourceFileLoader.exec_module
def measured(loader, module):
    before = tracemalloc.get_traced_memory()[0]
    nested.append(0)
    execute(loader, module)
    size = tracemalloc.get_traced_memory()[0] - before
    own[module.__name__] += size - nested.pop()
    nested[-1] += size
external.SourceFileLoader.exec_module = measured
tracemalloc.start()
{SERVER_MODULES}
print(json.dumps(own))
"""


def print_memory() -> None:
    """KiB that Python allocates for each package that a start imports (`tracemalloc`)."""
    command = [sys.executable, "-c", MEASURE_MEMORY]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sizes = json.loads(output)
    print_packages({module: size / 1024 for module, size in sizes.items()}, "KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--imports", action="store_true", help="import time by package, only")
    parser.add_argument("--memory", action="store_true", help="memory by package, only")
    args = parser.parse_args()
    # Without compiled modules a start costs twice as much, and the first start compiles them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    run()
    if args.imports or args.memory:
        if args.imports:
            print_imports()
        if args.memory:
            print_memory()
        return
    print_table([run() for _ in range(args.runs)])


if __name__ == "__main__":
    main()
