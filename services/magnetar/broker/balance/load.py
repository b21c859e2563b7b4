"""A broker's load report: its contents, and when it is written.

Topics are measured TOPICS_PER_TURN at a time, so that a broker with a hundred thousand topics keeps
serving its clients; measuring takes at most 1 % of the event loop's time. A report is written under
the broker's lease if it differs from the last by more than a threshold: at most once per minimum
interval, at least once per maximum interval. It names only the busiest bundles. So the load on the
metadata store is bounded.

CPU is the process's CPU time over wall time, as a fraction of one core: a broker is one event loop.
"""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from magnetar.broker.balance.model import REPORTS_PREFIX, BundleLoad, LoadReport
from magnetar.broker.topic.api import Topic
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore, StoreClosed

TOPICS_PER_TURN: Final = 512
WRITE_TIMEOUT_S: Final = 10.0
MEASURING_SHARE_MAX: Final = 0.01
"""The share of the loop's time that measuring the topics may take."""
CPU_SAMPLE_MIN_S: Final = 0.5
"""Over a shorter time, CPU use is noise: the last figure is reported again."""
RATE_CHANGE_MIN: Final = 100.0
"""Messages per second: a smaller change is ignored, however large in proportion."""

_STATM: Final = Path("/proc/self/statm")
_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

log = get_logger("magnetar.balance")


class Process(Protocol):
    """The resources that this process uses."""

    def cpu_seconds(self) -> float:
        """Returns the CPU time since the process started."""

    def memory_bytes(self) -> int:
        """Returns the resident memory; 0 if unknown."""

    def memory_limit_bytes(self) -> int:
        """Returns the memory that the process may use; 0 if unknown."""


class OwnProcess:
    """`Process` by the figures of the operating system."""

    def cpu_seconds(self) -> float:
        """Returns user and system time of this process."""
        times = os.times()
        return times.user + times.system

    def memory_bytes(self) -> int:
        """Returns the resident memory; 0 without a /proc file system."""
        if not _STATM.exists():
            return 0
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES

    def memory_limit_bytes(self) -> int:
        """Returns the container's limit, else the machine's memory; 0 if neither is known."""
        if _CGROUP_LIMIT.exists():
            text = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
            if text.isdigit():
                return int(text)
        if _MEMINFO.exists():
            return int(_MEMINFO.read_text(encoding="ascii").split()[1]) << 10
        return 0


class Serving(Protocol):
    """The topics that a broker serves: `BrokerService` and its ownership, seen from here."""

    @property
    def broker_id(self) -> str:
        """This broker's id."""

    @property
    def draining(self) -> bool:
        """Whether this broker is handing over its bundles."""

    def connections(self) -> int:
        """Returns the number of client connections."""

    def topics(self) -> Iterable[Topic]:
        """Returns the open topics."""

    def owned(self) -> Iterable[str]:
        """Returns the owned bundles, as `tenant/namespace/0x…_0x…`."""

    def bundle_of(self, name: TopicName) -> str | None:
        """Returns the topic's bundle, None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """When to write a report, and how many bundles it names."""

    change_min: float = 0.1
    interval_min_s: float = 5.0
    interval_max_s: float = 900.0
    bundles_max: int = 200


class LoadReporter:
    """Measures and reports the load. A listener of the session: add it before that starts."""

    def __init__(
        self,
        serving: Serving,
        store: MetadataStore,
        session: MetadataSession,
        clock: Clock,
        settings: ReportSettings | None = None,
        process: Process | None = None,
    ) -> None:
        self._serving = serving
        self._store = store
        self._session = session
        self._clock = clock
        self._settings = settings or ReportSettings()
        self._process = process or OwnProcess()
        self._started_ms = clock.now_ms()
        self._cpu_before = (self._process.cpu_seconds(), clock.monotonic())
        self._memory_limit = self._process.memory_limit_bytes()
        self._written: LoadReport | None = None
        self._written_s = 0.0
        self._write_now = asyncio.Event()
        self.last: LoadReport | None = None
        """The last measurement, written or not."""

    def suspended(self) -> None:
        """Does nothing: reports of brokers without a registration are ignored."""

    async def established(self, *, renewed: bool) -> None:
        """Writes the report again if the lease is a new one."""
        if renewed:
            self._written = None
            self._write_now.set()

    async def run(self) -> None:
        """Reports until the store is closed."""
        # CPU time of the start-up says nothing about the load to come.
        self._cpu_before = (self._process.cpu_seconds(), self._clock.monotonic())
        while True:
            began_s = self._clock.monotonic()
            try:
                await self.report()
            except StoreClosed:
                return
            except (MetadataError, TimeoutError, OSError) as error:
                # OSError: a process without free file descriptors cannot read its own figures.
                log.info("load not reported", error=str(error))
            except Exception:
                # A bug. Without new reports, the last one would count while the broker lives.
                log.exception("load not reported")
            took_s = self._clock.monotonic() - began_s
            pause_s = max(self._settings.interval_min_s, took_s / MEASURING_SHARE_MAX)
            self._write_now.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._write_now.wait()
            except TimeoutError:
                continue

    async def report(self) -> LoadReport:
        """Measures the load, and writes the report if it is due."""
        report = self.last = await self.measure()
        now_s = self._clock.monotonic()
        due = now_s - self._written_s >= self._settings.interval_max_s
        if self._session.valid and (
            due or self._written is None or self._differs(self._written, report)
        ):
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._store.put(
                    REPORTS_PREFIX + report.broker_id,
                    encode(report),
                    lease_id=self._session.lease_id,
                )
            self._written, self._written_s = report, now_s
        return report

    async def measure(self) -> LoadReport:
        """Returns the current load; CPU is the use since the measurement before."""
        serving = self._serving
        loads: dict[str, _Sums] = {bundle: _Sums() for bundle in serving.owned()}
        total = _Sums()
        for count, topic in enumerate(serving.topics()):
            bundle = serving.bundle_of(topic.name)
            if bundle is not None:
                sums = loads.get(bundle) or loads.setdefault(bundle, _Sums())
                sums.add(topic)
            if count % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        for sums in loads.values():
            total.include(sums)
        bundles = [sums.load(bundle) for bundle, sums in loads.items() if sums.topics]
        bundles.sort(key=lambda load: (-load.cost, -load.sessions, -load.topics, load.bundle))
        return LoadReport(
            broker_id=serving.broker_id,
            started_ms=self._started_ms,
            updated_ms=self._clock.now_ms(),
            cpu=round(self._cpu(), 4),
            memory_bytes=self._process.memory_bytes(),
            memory_limit_bytes=self._memory_limit,
            connections=serving.connections(),
            bundle_count=len(loads),
            topics=total.topics,
            producers=total.producers,
            consumers=total.consumers,
            msg_rate_in=round(total.msg_rate_in, 1),
            msg_rate_out=round(total.msg_rate_out, 1),
            msg_throughput_in=round(total.bytes_in, 1),
            msg_throughput_out=round(total.bytes_out, 1),
            draining=serving.draining,
            bundles=tuple(bundles[: self._settings.bundles_max]),
        )

    def _cpu(self) -> float:
        cpu_s, now_s = self._process.cpu_seconds(), self._clock.monotonic()
        cpu_before, then_s = self._cpu_before
        if now_s - then_s < CPU_SAMPLE_MIN_S:
            return self.last.cpu if self.last is not None else 0.0
        self._cpu_before = (cpu_s, now_s)
        return (cpu_s - cpu_before) / (now_s - then_s)

    def _differs(self, old: LoadReport, new: LoadReport) -> bool:
        least = self._settings.change_min
        if old.draining != new.draining or old.bundle_count != new.bundle_count:
            return True
        if abs(new.cpu - old.cpu) >= least or abs(new.memory - old.memory) >= least:
            return True
        # If not all bundles are named, those at the end of the list change all the time.
        whole = new.bundle_count <= self._settings.bundles_max
        if whole and {load.bundle for load in old.bundles} != {load.bundle for load in new.bundles}:
            return True
        for before, after in (
            (old.msg_rate_in + old.msg_rate_out, new.msg_rate_in + new.msg_rate_out),
            (old.topics, new.topics),
            (old.producers + old.consumers, new.producers + new.consumers),
        ):
            if abs(after - before) >= max(RATE_CHANGE_MIN, least * max(before, after)):
                return True
        return False


class _Sums:
    """The load of one bundle while it is added up."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "consumers",
        "msg_rate_in",
        "msg_rate_out",
        "producers",
        "topics",
    )

    def __init__(self) -> None:
        self.topics = self.producers = self.consumers = 0
        self.msg_rate_in = self.msg_rate_out = self.bytes_in = self.bytes_out = 0.0

    def add(self, topic: Topic) -> None:
        self.topics += 1
        self.producers += len(topic.producers)
        self.msg_rate_in += topic.counters.message_rate_in
        self.bytes_in += topic.counters.bytes_rate_in
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers:
                self.consumers += 1
                self.msg_rate_out += consumer.rates.out
                self.bytes_out += consumer.rates.throughput

    def include(self, other: "_Sums") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def load(self, bundle: str) -> BundleLoad:
        return BundleLoad(
            bundle,
            self.topics,
            self.producers,
            self.consumers,
            round(self.msg_rate_in, 1),
            round(self.msg_rate_out, 1),
            round(self.bytes_in, 1),
            round(self.bytes_out, 1),
        )
