"""Measures a broker with very many topics in one namespace: cost per topic, and failover.

    python -m tests.bench.scale --topics 10000 [--at-once 256] [--json FILE]

Runs a cluster of this checkout: etcd, three bookies, 2/2/2. Creates all topics on one broker, each
with a subscription and a message. A second broker takes over after kill -9 of the first; then the
first one starts again and takes over after a clean stop of the second. Each step prints a row:
seconds, CPU and memory by process, and requests to etcd.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import uvloop
from tests.bench.scale_clients import ScaleClient, Served, serve_all
from tests.support.cluster_processes import kill_all

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Role

Row = dict[str, object]

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
QUORUM = "2"
SETTLE_S = 4.0
IDLE_S = 20.0
STOP_TIMEOUT_S = 120.0
LEASES_EVERY_S = 0.25
ETCD_COUNTERS = {
    "etcd_mvcc_put_total": "etcd_puts",
    "etcd_mvcc_range_total": "etcd_ranges",
    "etcd_mvcc_txn_total": "etcd_txns",
    "etcd_disk_wal_fsync_duration_seconds_count": "etcd_fsyncs",
}
ETCD_SIZES = {
    "etcd_debugging_mvcc_keys_total": "etcd_keys",
    "etcd_mvcc_db_total_size_in_use_in_bytes": "etcd_bytes",
}


class Probe:
    """The CPU, memory and requests of the processes so far."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.at = time.monotonic()
        self.cpu: dict[str, float] = {}
        self.rss: dict[str, float] = {}
        for member in cluster.members:
            if member.process is not None:
                try:
                    self.cpu[member.name] = _cpu_s(member.process.pid)
                    self.rss[member.name] = _rss_kib(member.process.pid)
                except OSError:
                    continue  # it has ended
        self.etcd = _etcd(cluster)

    def row(self, before: "Probe", topics: int) -> Row:
        """Returns the use since the last probe: CPU seconds, memory and etcd's work per topic."""
        row: Row = {"seconds": round(self.at - before.at, 2)}
        for role in (Role.BROKER, Role.BOOKIE, Role.ETCD):
            names = [one.name for one in self._cluster.named(role) if one.name in self.cpu]
            grown = {
                name: self.rss[name] - before.rss.get(name, 0.0)
                for name in names
                if self.cpu[name] >= before.cpu.get(name, 0.0)
            }
            for name in grown if role is Role.BROKER else ():
                row[f"{name}_cpu_s"] = round(self.cpu[name] - before.cpu.get(name, 0.0), 2)
                row[f"{name}_rss_mib"] = round(self.rss[name] / 1024, 1)
                row[f"{name}_kib_per_topic"] = round(grown[name] / topics, 2)
            if role is not Role.BROKER:
                cpu = sum(self.cpu[name] - before.cpu.get(name, 0.0) for name in grown)
                row[f"{role}_cpu_s"] = round(cpu, 2)
                row[f"{role}_rss_mib"] = round(sum(self.rss[name] for name in names) / 1024, 1)
                row[f"{role}_kib_per_topic"] = round(sum(grown.values()) / topics, 2)
        for name in ETCD_COUNTERS.values():
            row[f"{name}_per_topic"] = round((self.etcd[name] - before.etcd[name]) / topics, 3)
        for name in ETCD_SIZES.values():
            row[f"{name}_per_topic"] = round((self.etcd[name] - before.etcd[name]) / topics, 2)
        return row


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _rss_kib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next((line.split()[1] for line in lines if line.startswith("RssAnon:")), "0"))


def _got(url: str, body: bytes | None = None) -> bytes:
    """Returns the response of one of our own processes."""
    with urllib.request.urlopen(url, data=body, timeout=120) as answer:  # noqa: S310
        content: bytes = answer.read()
        return content


class LeaseWatcher:
    """The least time that was left of any lease in etcd, in whole seconds."""

    def __init__(self, etcd_url: str) -> None:
        self._url = etcd_url
        self._least: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="leases", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(LEASES_EVERY_S):
            try:
                leases = json.loads(_got(self._url + "/v3/lease/leases", b"{}")).get("leases", [])
                for lease in leases:
                    body = json.dumps({"ID": lease["ID"]}).encode()
                    left = json.loads(_got(self._url + "/v3/lease/timetolive", body))
                    if int(left.get("grantedTTL", 0)) and int(left.get("TTL", 0)) >= 0:
                        least = int(left.get("TTL", 0))
                        self._least = least if self._least is None else min(self._least, least)
            except OSError:
                continue

    def least(self) -> int | None:
        """Returns the minimum since the last call."""
        least, self._least = self._least, None
        return least

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def _metrics(url: str) -> dict[str, float]:
    """Returns the sum of each metric."""
    text = _got(url + "/metrics").decode()
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = line.partition(" ")[0].partition("{")[0]
            try:
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
            except ValueError:
                continue
    return sums


def _etcd(cluster: LocalCluster) -> dict[str, float]:
    found = _metrics(cluster.named(Role.ETCD)[0].http_url)
    return {name: found.get(key, 0.0) for key, name in (ETCD_COUNTERS | ETCD_SIZES).items()}


class Scale:
    """The steps of a run, in order."""

    def __init__(self, cluster: LocalCluster, topics: int, at_once: int, out: Path | None) -> None:
        self._cluster = cluster
        self._topics = topics
        self._at_once = at_once
        self._out = out
        self._first, self._second = (one.name for one in cluster.named(Role.BROKER))
        self._clients: list[ScaleClient] = []
        self._leases: LeaseWatcher | None = None
        self.takeover_s: float | None = None

    def _names(self) -> list[str]:
        return [f"persistent://public/default/scale-{n:07d}" for n in range(self._topics)]

    def _keep(self, step: str, row: Row) -> None:
        row = {"topics": self._topics, "step": step, **row}
        line = json.dumps(row)
        if self._out is not None:
            with self._out.open("a") as out:
                out.write(line + "\n")
        print(line, flush=True)

    def _start(self, name: str) -> float:
        begun = time.monotonic()
        self._cluster.start(name)
        self._cluster.wait_ready([name])
        return time.monotonic() - begun

    def _served(self, step: str, name: str, before: Probe, **more: object) -> None:
        """Publishes a message to every topic through the broker `name`."""
        member = self._cluster.member(name)
        begun = time.monotonic()

        async def serve() -> Served:
            address = (member.host, member.ports["port"])
            served, self._clients = await serve_all(
                address,
                self._names(),
                at_once=self._at_once,
                subscribe=step == "create",
                started=before.at,
                seconds_max=None if step == "create" else self.takeover_s,
            )
            row: Row = {
                **more,
                "p50_s": round(served.share(0.5), 2),
                "all_s": round(served.seconds, 2),
                "served": len(served.at),
                "topics_per_s": round(len(served.at) / (time.monotonic() - begun)),
                "one_p50_ms": round(served.wait(0.5) * 1000),
                "one_p99_ms": round(served.wait(0.99) * 1000),
                "lease_left_s_min": None if self._leases is None else self._leases.least(),
                "retries": served.retries,
                "failures": len(served.failures),
            }
            await asyncio.to_thread(time.sleep, SETTLE_S)
            self._keep(step, {**row, **Probe(self._cluster).row(before, len(served.at))})
            for failure in served.failures[:3]:
                print("   ", failure, flush=True)
            for client in self._clients:
                await client.close()
            return served

        uvloop.run(serve())
        self._keep_lease(step, name)

    def _keep_lease(self, step: str, name: str) -> None:
        """Keeps the log lines about suspended leases."""
        text = self._cluster.log(name).read_text(errors="replace")
        said = [line for line in text.splitlines() if "suspended" in line or "not renewed" in line]
        if said:
            self._keep(f"{step}: leases", {"lines": len(said), "last": said[-1][:200]})

    def run(self, *, only_kill: bool) -> None:
        for role in (Role.ETCD, Role.BOOKIE):
            for member in self._cluster.named(role):
                self._start(member.name)
        self._start(self._first)
        self._leases = LeaseWatcher(self._cluster.named(Role.ETCD)[0].http_url)
        try:
            self._steps(only_kill=only_kill)
        finally:
            self._leases.end()

    def _steps(self, *, only_kill: bool) -> None:
        self._served("create", self._first, Probe(self._cluster))
        self._rest("idle", self._first)
        self._scrape(self._first)
        self._start(self._second)
        time.sleep(SETTLE_S)
        before = Probe(self._cluster)
        self._cluster.kill(self._first)
        self._served("kill -9, taken over", self._second, before)
        self._rest("idle after it", self._second)
        if only_kill:
            return
        ready = self._start(self._first)
        before = Probe(self._cluster)
        member = self._cluster.member(self._second)
        assert member.process is not None
        os.kill(member.process.pid, signal.SIGTERM)
        begun = time.monotonic()
        while Path(f"/proc/{member.process.pid}/fd").exists() and _runs(member.process.pid):
            if time.monotonic() - begun > STOP_TIMEOUT_S:
                self._cluster.kill(self._second)
            time.sleep(0.05)
        stopped = round(time.monotonic() - begun, 2)
        self._served(
            "stopped, taken over",
            self._first,
            before,
            broker_start_s=round(ready, 2),
            broker_stop_s=stopped,
        )

    def _rest(self, step: str, name: str) -> None:
        """Measures the cost of idle topics."""
        before = Probe(self._cluster)
        time.sleep(IDLE_S)
        after = Probe(self._cluster)
        seconds = after.at - before.at
        self._keep(
            step,
            {
                "broker_cpu_percent": round(
                    (after.cpu[name] - before.cpu[name]) / seconds * 100, 2
                ),
                "etcd_ranges_per_s": round(
                    (after.etcd["etcd_ranges"] - before.etcd["etcd_ranges"]) / seconds, 1
                ),
            },
        )

    def _scrape(self, name: str) -> None:
        """Measures one scrape of /metrics, with series per topic."""
        before = Probe(self._cluster)
        member = self._cluster.member(name)
        size = len(_got(member.http_url + "/metrics"))
        after = Probe(self._cluster)
        cpu = after.cpu[name] - before.cpu[name]
        self._keep("scrape", {"mib": round(size / 2**20, 1), "broker_cpu_s": round(cpu, 2)})


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--at-once", type=int, default=256, help="topics under way at a time")
    parser.add_argument("--json", type=Path, default=None, help="rows are added to this file")
    parser.add_argument(
        "--takeover-s", type=float, default=None, help="ends a takeover early; shows its rate"
    )
    parser.add_argument("--only-kill", action="store_true", help="leaves out the last step")
    parser.add_argument("--keep", action="store_true", help="leaves the directory, with the logs")
    arguments = parser.parse_args()
    # However the run ends, its processes end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    root = Path(tempfile.mkdtemp(prefix="scale-"))
    quorum = {
        f"managedLedgerDefault{what}": QUORUM
        for what in ("EnsembleSize", "WriteQuorum", "AckQuorum")
    }
    cluster = LocalCluster.create(
        root / "cluster",
        bookies=3,
        brokers=2,
        base="free",
        settings={**quorum, "loadBalancerEnabled": "false"},
    )
    try:
        scale = Scale(cluster, arguments.topics, arguments.at_once, arguments.json)
        scale.takeover_s = arguments.takeover_s
        scale.run(only_kill=arguments.only_kill)
    finally:
        kill_all(cluster)
        if arguments.keep:
            print(root)
        else:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
