"""The status of the members of a local cluster; requests run concurrently, with a deadline."""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from magnetar.cluster.local import process
from magnetar.cluster.local.cluster import LocalCluster, probe
from magnetar.cluster.local.members import Member, Role

ASKED_AT_ONCE_MAX = 16
SAMPLE_S = 0.25
"""Between the two samples that a share of CPU needs."""


class MemberStatus(msgspec.Struct, frozen=True):
    """The status of one member."""

    name: str
    role: str
    address: str
    http_url: str
    state: str
    """`ready`, `not ready`, `paused` or `stopped`."""
    reason: str
    """Why it is not ready: the text of its readiness probe."""
    pid: int | None = None
    uptime_s: float | None = None
    cpu_s: float | None = None
    cpu_percent: float | None = None
    """CPU use in percent of one core."""
    resident_bytes: int | None = None
    proportional_bytes: int | None = None
    holds: dict[str, object] = {}
    """The document of its /status, with bundles and topics, or ledgers and disk."""


class Observer:
    """Observes the members repeatedly; shares of CPU are since the previous observation."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._before: dict[int, tuple[float, float]] = {}

    def observe(self) -> list[MemberStatus]:
        """Returns the status of all members, in the order of their roles."""
        with ThreadPoolExecutor(ASKED_AT_ONCE_MAX, "cluster-status") as pool:
            rows = list(pool.map(self._observe, self._cluster.members))
        order = list(Role)
        return sorted(rows, key=lambda row: order.index(Role(row.role)))

    def observe_with_cpu(self) -> list[MemberStatus]:
        """Returns the status of all members; samples their CPU twice, as a first call needs."""
        for member in self._cluster.members:
            self._usage(member)
        time.sleep(SAMPLE_S)
        return self.observe()

    def _usage(self, member: Member) -> tuple[process.Usage | None, float | None]:
        """Returns the process's usage, and its share of a core since the previous sample."""
        running = member.process
        used = process.usage(running) if running is not None else None
        if running is None or used is None:
            return None, None
        now = time.monotonic()
        before = self._before.get(running.pid)
        self._before[running.pid] = (now, used.cpu_s)
        if before is None or now <= before[0]:
            return used, None
        return used, max(0.0, (used.cpu_s - before[1]) / (now - before[0]) * 100)

    def _observe(self, member: Member) -> MemberStatus:
        running = member.process
        if running is None or not process.is_running(running):
            return _row(member, "stopped", "")
        used, cpu_percent = self._usage(member)
        holds: Mapping[str, object] = {}
        if process.is_paused(running):
            state, reason = "paused", ""
        else:
            ready, text = probe(member.ready_url)
            state, reason = ("ready", "") if ready else ("not ready", text)
            if member.role is not Role.ETCD:
                holds = _holds(member)
        row = _row(member, state, reason)
        return msgspec.structs.replace(
            row,
            pid=running.pid,
            uptime_s=used.running_s if used else None,
            cpu_s=used.cpu_s if used else None,
            cpu_percent=cpu_percent,
            resident_bytes=used.resident_bytes if used else None,
            proportional_bytes=used.proportional_bytes if used else None,
            holds=dict(holds),
        )


def _row(member: Member, state: str, reason: str) -> MemberStatus:
    return MemberStatus(
        name=member.name,
        role=member.role.value,
        address=member.address,
        http_url=member.http_url,
        state=state,
        reason=reason,
    )


def _holds(member: Member) -> Mapping[str, object]:
    answered, text = probe(member.http_url + "/status")
    if not answered:
        return {}
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
