"""Compares a cluster of this checkout with a real Pulsar cluster, in one run on one machine.

    python -m tests.bench.cluster --kit DIR [--quorum "3 2 2"] [--seconds 21] [--runs 3] [NAME...]

Runs the loads of `compare`, and measures the pauses after kills. Appends each row to the output
file at once.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.clusters import MagnetarCluster, PulsarCluster
from tests.bench.compare import table
from tests.bench.scenarios import CLIENTS, SCENARIOS, Load, Row
from tests.bench.servers import memory_mib

Cluster = MagnetarCluster | PulsarCluster

PULSAR_PORTS = (36650, 38080)
SETTLE_S = 3.0
WARM_S = 2.0
PAUSE_WATCHED_S = 70.0
BOOKIE_WATCHED_S = 10.0
CATCH_UP_MESSAGES = 1_000_000
ONCE = ("idle", "start", "idle topics")


def start(load: Load) -> Row:
    """Returns the seconds until all processes are ready again after a kill of all."""
    load.server.stop()
    time.sleep(1)
    seconds = load.server.start()
    time.sleep(SETTLE_S)
    return {"ready_s": round(seconds, 2), "rss_mib": round(memory_mib(load.server)[0])}


def _client(load: Load, topic: str, mode: str, seconds: float) -> "subprocess.Popen[str]":
    url = cluster_of(load).service_url
    return subprocess.Popen(
        [sys.executable, "-m", f"{CLIENTS}.pause", url, topic, str(seconds), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def cluster_of(load: Load) -> Cluster:
    """Returns the server of the load, which is a cluster here."""
    assert isinstance(load.server, MagnetarCluster | PulsarCluster)
    return load.server


def _pause(client: "subprocess.Popen[str]") -> float:
    output, _ = client.communicate(timeout=PAUSE_WATCHED_S * 3)
    return round(float(json.loads(output.strip().splitlines()[-1])["pause_s"]), 3)


def _owner(cluster: Cluster, topic: str) -> str:
    path = topic.replace("://", "/")
    url = f"http://127.0.0.1:{cluster.http_port}/lookup/v2/topic/{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        broker = json.load(answer)["brokerUrl"]
    return cluster.broker_of(urlsplit(broker).port or 0)


def broker_killed(load: Load) -> Row:
    """Kills the broker of a topic; measures until a connected and a new producer have a receipt."""
    cluster, topic = cluster_of(load), load.topic("pause")
    connected = _client(load, topic, "connected", PAUSE_WATCHED_S)
    assert connected.stdout is not None
    assert "ready" in connected.stdout.readline()
    time.sleep(WARM_S)
    victim = _owner(cluster, topic)
    cluster.kill(victim)
    new = _pause(_client(load, topic, "new", PAUSE_WATCHED_S))
    row: Row = {"new_producer_s": new, "connected_producer_s": _pause(connected)}
    cluster.restart(victim)
    return row


def bookie_killed(load: Load) -> Row:
    """Kills and restarts each bookie in turn; measures the longest pause of sends."""
    cluster, topic = cluster_of(load), load.topic("pause")
    longest = 0.0
    for victim in sorted(name for name in cluster.pids if name.startswith("bookie")):
        connected = _client(load, topic, "connected", BOOKIE_WATCHED_S)
        assert connected.stdout is not None
        assert "ready" in connected.stdout.readline()
        time.sleep(WARM_S)
        cluster.kill(victim)
        longest = max(longest, _pause(connected))
        cluster.restart(victim)
        time.sleep(SETTLE_S)
    return {"longest_pause_s": longest}


def catch_up(load: Load) -> Row:
    """Reads a backlog of 1 KiB messages from its beginning while 5,000 a second are written."""
    topic = load.topic("catch-up")
    load.python("subscribe", topic, "drain")
    count = ("-m", str(CATCH_UP_MESSAGES))
    load.run(*load.perf("produce", "-r", "2000000", "-ml", "64M", "-s", "1024", *count, topic))
    environment = {"PULSAR_HOST": "127.0.0.1", "PULSAR_PORT": str(load.server.port)}
    writer = subprocess.Popen(
        load.perf("produce", "-r", "5000", "-s", "1024", "-time", "60", load.topic("beside")),
        env={**os.environ, **environment, "HTTP_PORT": str(load.server.http_port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(WARM_S * 2)
        return _drain(load, topic)
    finally:
        writer.terminate()
        writer.wait(30)


def _drain(load: Load, topic: str) -> Row:
    consume = ("-ss", "drain", "-sp", "Earliest", "-q", "10000")
    output, row = load.measured(
        *load.perf("consume", *consume, "-m", str(CATCH_UP_MESSAGES - 1_000), topic)
    )
    found = re.search(r"(\d+) records received --- ([\d.]+) msg/s", output)
    row["rate"] = round(float(found.group(2))) if found else None
    return row


LOADS: dict[str, Callable[[Load], Row]] = {
    "start": start,
    "idle": SCENARIOS["idle"],
    "latency": SCENARIOS["latency"],
    "1 KiB batched": SCENARIOS["1 KiB batched"],
    "1 KiB batched, 10 partitions": SCENARIOS["1 KiB batched, 10 partitions"],
    "1 KiB unbatched": SCENARIOS["1 KiB unbatched"],
    "1 KiB unbatched, 10 partitions": SCENARIOS["1 KiB unbatched, 10 partitions"],
    "100 B batched": SCENARIOS["100 B batched"],
    "100 B unbatched": SCENARIOS["100 B unbatched"],
    "drain batched": SCENARIOS["drain batched"],
    "drain unbatched": SCENARIOS["drain unbatched"],
    "catch-up while writing": catch_up,
    "broker killed": broker_killed,
    "bookie killed": bookie_killed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kit", type=Path)
    parser.add_argument("--quorum", default="3 2 2")
    parser.add_argument("--seconds", type=int, default=21)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench-cluster.jsonl"))
    parser.add_argument("--only", choices=("magnetar", "pulsar"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(LOADS)}")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    clusters: list[Cluster] = []
    if arguments.only != "pulsar":
        clusters.append(MagnetarCluster(root, arguments.quorum))
    if arguments.kit is not None and arguments.only != "magnetar":
        kit = arguments.kit.resolve()
        clusters.append(PulsarCluster(kit, root, arguments.quorum, *PULSAR_PORTS))
    rows: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))

    def keep(name: str, cluster: Cluster, row: Row) -> None:
        name = f"{name}, {arguments.quorum.replace(' ', '/')}"
        rows[name][cluster.name].append(row)
        line = json.dumps({"scenario": name, "server": cluster.name, **row})
        with arguments.out.open("a") as out:
            out.write(line + "\n")
        print(line, flush=True)

    perf = (arguments.kit / "perf.sh" if arguments.kit else Path("perf.sh")).resolve()
    try:
        for cluster in clusters:
            keep("start, empty", cluster, {"ready_s": round(cluster.start(), 2)})
        loads = [Load(cluster, perf, arguments.seconds, root / "log") for cluster in clusters]
        for name in arguments.names or LOADS:
            for _ in range(1 if name in ONCE else arguments.runs):
                for load in loads:
                    time.sleep(SETTLE_S)
                    keep(name, cluster_of(load), LOADS[name](load))
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(root, ignore_errors=True)
    print(table(rows))


if __name__ == "__main__":
    main()
