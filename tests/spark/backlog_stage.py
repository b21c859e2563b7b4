"""Runs the job `backlog` on a cluster in memory, with Spark's aggregation in plain Python."""

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.acero  # noqa: F401  # its first use imports it, which takes seconds
import pyarrow.parquet as pq
import pytest
from tests.spark.job_stage import JobCluster, append, entry
from tests.unit.ledger.stage import ManualClock

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.ids import EARLIEST
from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.offload.policy import namespace_key
from magnetar_spark.jobs.backlog import job
from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    SCANNED,
    UNREAD,
    UNREAD_BY_KEY,
    SumRow,
)
from magnetar_spark.jobs.backlog.scan.plan import ScanRange
from magnetar_spark.jobs.backlog.scan.scan import scan_ranges
from magnetar_spark.jobs.backlog.scan.sums import (
    KEYS_MAX,
    Scanned,
    grouped_by_kind,
    minutes_max,
    scan_here,
)
from magnetar_spark.jobs.progress import Progress
from magnetar_spark.log.settings import LogSettings

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/t"
NAME = log_name(parse_topic(TOPIC))
SIZE = 200
MINUTE_MS = 60_000
Row = dict[str, Any]
ADDED = ("number", "entries", "messages", "bytes")


def ranked(sums: Iterable[Row], newest: int) -> list[Row]:
    """Ranks rows as Spark does for `sums._ranked`."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sums:
        if row["kind"] == BY_KEY and row["key"] is None:
            continue
        group = 0 if row["kind"] in (SCANNED, UNREAD) else row["number"]
        names = ("kind", "topic", "subscription", "key")
        groups.setdefault((*(row[name] for name in names), group), []).append(row)
    rows = [_summed(key, of_group) for key, of_group in groups.items()]
    windows: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        windows.setdefault((row["kind"], row["topic"], row["subscription"]), []).append(row)
    kept: list[Row] = []
    for (kind, *_), window in windows.items():
        _rank(window, "rank_messages", lambda row: (-(row["messages"] or 0), row["key"] or b""))
        age = -1 if kind == BY_MINUTE else 0
        _rank(window, "rank_oldest", partial(_age, age))
        for row in window:
            row |= {"keys": len(window), "keyed_messages": _sum(window, "messages")}
            of_messages, of_age = row["rank_messages"], row["rank_oldest"]
            few = kind not in (BY_KEY, UNREAD_BY_KEY, BY_MINUTE)
            of_keys = kind in (BY_KEY, UNREAD_BY_KEY) and of_messages <= KEYS_MAX
            oldest = kind == UNREAD_BY_KEY and of_age <= KEYS_MAX
            if few or of_keys or oldest or (kind == BY_MINUTE and of_age <= newest):
                kept.append(row)
    for row in kept:
        row["ledger_id"], row["entry_id"], row["first_ms"] = (
            None if each < 0 else each for each in row.pop("place")
        )
    return kept


def _summed(key: tuple[Any, ...], rows: list[Row]) -> Row:
    kind, topic, subscription, text, group = key
    names = ("ledger_id", "entry_id", "oldest_ms")
    places = [tuple(-1 if row[name] is None else row[name] for name in names) for row in rows]
    known = {
        name: [row[name] for row in rows if row[name] is not None]
        for name in ("oldest_ms", "newest_ms")
    }
    return {
        "kind": kind,
        "topic": topic,
        "subscription": subscription,
        "key": text,
        "group": group,
        **{name: _sum(rows, name) for name in ADDED},
        "oldest_ms": min(known["oldest_ms"], default=None),
        "newest_ms": max(known["newest_ms"], default=None),
        "place": min(places),
    }


def _sum(rows: list[Row], name: str) -> int | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) if known else None


def _age(factor: int, row: Row) -> Any:
    return factor * (row["group"] or 0), row["place"], row["key"] or b""


def _rank(rows: list[Row], name: str, order: Callable[[Row], Any]) -> None:
    for rank, row in enumerate(sorted(rows, key=order), 1):
        row[name] = rank


class Backlogs:
    """The cluster, whose clock only moves on request, and the job's output."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.clock = ManualClock()
        self.cluster = JobCluster(monkeypatch, folder / "cold", capsys, self.clock)
        self.output = folder / "output"
        self.tasks: list[tuple[ScanRange, ...]] = []
        """Of the last scan."""
        monkeypatch.setattr(job, "scan_with_spark", self._scan)
        monkeypatch.setattr(job, "scan_here", self._scan_here)

    def put(self, key: str, value: bytes) -> None:
        self.cluster.run(self.cluster.store.put(key, value))

    def time(self, later_ms: int = 0) -> datetime:
        """Returns the clock's time in the form of tables."""
        return datetime.fromtimestamp((self.clock.now_ms() + later_ms) / 1000, UTC)

    def _scan_here(
        self,
        settings: LogSettings,
        task: tuple[ScanRange, ...],
        bookies: Sequence[BookieRegistration],
    ) -> Scanned:
        self.tasks = [task]
        return scan_here(settings, task, bookies)

    def _scan(
        self,
        spark: object,
        settings: LogSettings,
        tasks: Sequence[tuple[ScanRange, ...]],
        bookies: Sequence[BookieRegistration],
        progress: Progress,
    ) -> Scanned:
        assert spark is self.cluster
        assert progress is not None
        self.tasks = list(tasks)
        found: list[Row] = []
        for task in tasks:
            given = pickle.loads(pickle.dumps((settings, task, tuple(bookies))))  # noqa: S301
            for batch in scan_ranges(*given):
                found += batch.to_pylist()
        return grouped_by_kind(map(SumRow.of, ranked(found, minutes_max(tasks))))

    def run(self, *arguments: str) -> dict[str, Any]:
        """Runs the job on the namespace; returns its summary."""
        given = ["--namespace", NAMESPACE, "--output", str(self.output), *arguments]
        return self.cluster.job("backlog", *given)

    def rows(self, table: str, **where: Any) -> list[Row]:
        """Returns the rows of the newest run."""
        runs = sorted((self.output / "tables" / table).iterdir())
        found = pq.read_table(runs[-1] / "part-0.parquet", partitioning=None).to_pylist()
        return [row for row in found if all(row[name] == value for name, value in where.items())]

    def row(self, table: str, **where: Any) -> Row:
        (found,) = self.rows(table, **where)
        return found

    def topic(
        self,
        topic: str,
        entries: Sequence[bytes],
        cursors: dict[str, Callable[[Cursor], object]],
        *,
        every_ms: int = 0,
        then: Callable[[ManagedLedger], Any] | None = None,
    ) -> dict[str, Row]:
        """Writes a topic and the acks of its subscriptions; its broker then dies.

        The clock advances after every entry. Returns the broker's stats of each subscription.
        """

        async def made() -> dict[str, Row]:
            async with self.cluster.broker(dies=True) as factory:
                ledger = await factory.open(log_name(parse_topic(topic)))
                opened = {
                    name: await ledger.open_cursor(name, initial=EARLIEST) for name in cursors
                }
                for each in entries:
                    await append(ledger, [each])
                    self.clock.advance(every_ms)
                for name, act in cursors.items():
                    act(opened[name])
                    await opened[name].flush()
                if then is not None:
                    await then(ledger)
                return {name: _told(each) for name, each in opened.items()}

        return self.cluster.run(made())


def _told(cursor: Cursor) -> Row:
    oldest = cursor.oldest_unacked
    return {
        "entries": cursor.backlog,
        "bytes": cursor.backlog_bytes_estimate,
        "mark_ledger": cursor.mark_delete.ledger_id,
        "mark_entry": cursor.mark_delete.entry_id,
        "oldest_ledger": None if oldest is None else oldest.ledger_id,
        "oldest_entry": None if oldest is None else oldest.entry_id,
        "acked_beyond": cursor.holes_count,
        "acked_ranges": cursor.ranges_count,
        "partial_entries": len(cursor.batches),
    }


def nothing(_: Cursor) -> None:
    """Acknowledges nothing."""


def acked(ledger_id: int, entry_id: int) -> Any:
    return lambda cursor: cursor.ack_cumulative((ledger_id, entry_id))


def holes(cursor: Cursor) -> None:
    """Acknowledges some entries of two ledgers, out of order."""
    for place in ((1, 0), (1, 2), (2, 1), (2, 2), (3, 0)):
        cursor.ack(*place)


def message(number: int, time_ms: int) -> bytes:
    return entry(number, key=f"k{number % 3}", value=b"x" * SIZE, time_ms=time_ms)


def messages(backlogs: Backlogs, count: int, first: int = 0) -> list[bytes]:
    """Returns messages, one per second, up to now."""
    now_ms = backlogs.clock.now_ms()
    return [message(n, now_ms - 1_000 * (first + count - n)) for n in range(first, first + count)]


def policies(backlogs: Backlogs, **fields: Any) -> None:
    backlogs.put(namespace_key(NAME), json.dumps(fields).encode())
