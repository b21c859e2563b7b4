"""How the members of a local cluster are: asked all at once, each with a deadline."""

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
"""Between the two looks that a share of CPU needs."""


class MemberStatus(msgspec.Struct, frozen=True):
    """One row."""

    name: str
    role: str
    address: str
    http_url: str
    state: str
    """`ready`, `not ready`, `paused` or `stopped`."""
    reason: str
    """Why it is not ready, in its own words."""
    pid: int | None = None
    uptime_s: float | None = None
    cpu_s: float | None = None
    cpu_percent: float | None = None
    """Of one core."""
    resident_bytes: int | None = None
    proportional_bytes: int | None = None
    holds: dict[str, object] = {}
    """What it says of its work: bundles and topics, or ledgers and disk."""


class Observer:
    """Looks again and again; shares of CPU are those since the look before."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._before: dict[int, tuple[float, float]] = {}

    def look(self) -> list[MemberStatus]:
        """The members, in their order."""
        found = self._cluster.members
        with ThreadPoolExecutor(ASKED_AT_ONCE_MAX, "cluster-status") as pool:
            rows = list(pool.map(self._look, found))
        order = list(Role)
        return sorted(rows, key=lambda row: order.index(Role(row.role)))

    def look_twice(self) -> list[MemberStatus]:
        """With shares of CPU although it is the first look."""
        for member in self._cluster.members:
            self._usage(member)
        time.sleep(SAMPLE_S)
        return self.look()

    def _usage(self, member: Member) -> tuple[process.Usage | None, float | None]:
        """What its process used, and which share of a core since the last look."""
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

    def _look(self, member: Member) -> MemberStatus:
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
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
