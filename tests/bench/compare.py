"""Compares this checkout with a real Pulsar, scenario by scenario, in one run on one machine.

    python -m tests.bench --kit DIR [--seconds 21] [--runs 3] [--warm 0] [--fsync] [--tls] [--token]
        [--set KEY=VALUE] [NAME...]

Both servers are up during the whole run; each scenario loads one, then the other, `--runs` times
after `--warm` times that do not count, and medians are compared. Without `--kit` only Magnetar's
start-up, idle and wheel rows are measured. Each row is appended to the output file as JSON at once;
a table follows at the end.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.bench.clusters import PulsarCluster
from tests.bench.scenarios import SCENARIOS, Load, Row
from tests.bench.secured import Security
from tests.bench.servers import MagnetarServer, PulsarServer, Server, memory_mib

PORTS = {"magnetar": (26650, 28080, 26651), "pulsar": (31650, 31080, 31651)}
NO_PERF_NEEDED = (
    "idle",
    "latency",
    "wheel 1 KiB batched",
    "wheel 1 KiB unbatched",
    "idle topics",
    "idle connections",
)
ONCE = ("idle", "idle topics", "idle connections", "restart, 1 GiB in 100 topics")
TRANSACTIONS = ("transactions", "pulsar-perf transaction")
START_RUNS = 3
SETTLE_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kit", type=Path)
    parser.add_argument("--seconds", type=int, default=21)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=0, help="runs of each row before those")
    parser.add_argument(
        "--fsync",
        action="store_true",
        help="Pulsar as one broker and one bookie, which fsyncs; its standalone does not",
    )
    parser.add_argument("--out", type=Path, default=Path("bench.jsonl"))
    parser.add_argument("--tls", action="store_true", help="clients connect by TLS")
    parser.add_argument("--token", action="store_true", help="with authentication by token")
    parser.add_argument(
        "--set", action="append", default=[], help="KEY=VALUE for both servers, by Pulsar's names"
    )
    parser.add_argument("--only", choices=("magnetar", "pulsar"))
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of: start, {', '.join(SCENARIOS)}"
    )
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    security = Security.create(root, tls=arguments.tls, token=arguments.token)
    security.settings.update(setting.split("=", 1) for setting in arguments.set)
    servers: list[Server] = []
    if arguments.only != "pulsar":
        servers.append(MagnetarServer(root, *PORTS["magnetar"], security))
    if arguments.kit is not None and arguments.only != "magnetar":
        servers.append(_pulsar(arguments, root, security))
    names = arguments.names or ["start", *filter(_named, SCENARIOS)]
    if arguments.kit is None:
        names = [
            name
            for name in names
            if name in ("start", *NO_PERF_NEEDED) or name.startswith(TRANSACTIONS[0])
        ]
    rows: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    try:
        _measure(servers, security, names, arguments, root, rows)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(root, ignore_errors=True)
    print(table(rows))


def _pulsar(arguments: argparse.Namespace, root: Path, security: Security) -> Server:
    kit, (port, http_port, port_tls) = arguments.kit.resolve(), PORTS["pulsar"]
    if not arguments.fsync:
        return PulsarServer(kit, root, port, http_port, port_tls, security)
    if arguments.tls or arguments.token:
        raise SystemExit("--fsync: the kit's cluster has no TLS and no tokens")
    return PulsarCluster(
        *(kit, root, "1 1 1", port, http_port), bookies=1, brokers=1, settings=security.settings
    )


def _named(scenario: str) -> bool:
    """Whether a scenario is run without being named: those of transactions need a setting."""
    return not scenario.startswith(TRANSACTIONS)


def _measure(
    servers: list[Server],
    security: Security,
    names: list[str],
    arguments: argparse.Namespace,
    root: Path,
    rows: dict[str, dict[str, list[Row]]],
) -> None:
    def keep(name: str, server: Server, row: Row) -> None:
        rows[name][server.name].append(row)
        line = json.dumps({"scenario": name, "server": server.name, **row})
        with arguments.out.open("a") as out:
            out.write(line + "\n")
        print(line, flush=True)

    for server in servers:
        if "start" in names:
            for _ in range(START_RUNS):
                keep("start, empty", server, _started(server))
                server.stop()
                keep("start, again", server, _started(server))
                server.stop()
                shutil.rmtree(root / server.name, ignore_errors=True)
        server.start()
    perf = arguments.kit / "perf.sh" if arguments.kit else Path("perf.sh")
    loads = [
        Load(server, perf.resolve(), arguments.seconds, root / "log", security)
        for server in servers
    ]
    for name in names:
        if name == "start":
            continue
        warm = 0 if name in ONCE else arguments.warm
        for run in range(-warm, 1 if name in ONCE else arguments.runs):
            for load in loads:
                time.sleep(SETTLE_S)
                row = SCENARIOS[name](load)
                if run >= 0:
                    keep(name, load.server, row)


def _started(server: Server) -> Row:
    seconds = server.start()
    time.sleep(SETTLE_S)
    return {"ready_s": round(seconds, 3), "rss_mib": round(memory_mib(server)[0])}


def table(rows: dict[str, dict[str, list[Row]]]) -> str:
    """A markdown table of medians; the ratio is Magnetar's to Pulsar's."""
    lines = ["| scenario | figure | Magnetar | Pulsar | ratio |", "|---|---|---|---|---|"]
    for name, by_server in rows.items():
        figures = dict.fromkeys(key for found in by_server.values() for row in found for key in row)
        for figure in figures:
            ours, theirs = (
                _median(by_server.get(who, []), figure) for who in ("magnetar", "pulsar")
            )
            ratio = f"{ours / theirs:.2f}" if ours is not None and theirs else ""
            lines.append(f"| {name} | {figure} | {_text(ours)} | {_text(theirs)} | {ratio} |")
    return "\n".join(lines)


def _median(rows: list[Row], figure: str) -> float | None:
    values = [float(value) for row in rows if isinstance(value := row.get(figure), int | float)]
    return statistics.median(values) if values else None


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
