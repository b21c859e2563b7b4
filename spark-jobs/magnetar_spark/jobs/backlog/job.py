"""The steps of a backlog run: gather, scan, compare with the earlier run, write, publish."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from magnetar.core.errors import PreconditionFailed
from magnetar.documents.backlog import WORST
from magnetar.jobs.event_loop import run as run_async
from magnetar.managed_ledger.backlog_record import record_key
from magnetar_spark.jobs.backlog.analyse import attention
from magnetar_spark.jobs.backlog.analyse.attention import Finding
from magnetar_spark.jobs.backlog.analyse.published import published, total, worst
from magnetar_spark.jobs.backlog.analyse.what_if import parse_scenarios
from magnetar_spark.jobs.backlog.gather.gather import Gathered, Questions, gather
from magnetar_spark.jobs.backlog.gather.policies import Keeping, parse_retention, parse_time_ms
from magnetar_spark.jobs.backlog.report import metrics, report
from magnetar_spark.jobs.backlog.report.output import Output, run_ms, run_name
from magnetar_spark.jobs.backlog.scan.plan import ScanRange, scan_plan
from magnetar_spark.jobs.backlog.scan.ranks import TooManyRows
from magnetar_spark.jobs.backlog.scan.sums import Scanned, scan_here, scan_with_spark, tasks_of
from magnetar_spark.jobs.backlog.tables import assemble
from magnetar_spark.jobs.backlog.tables.tables import (
    TABLES,
    Rows,
    SubscriptionRow,
    TopicRow,
    arrow_table,
)
from magnetar_spark.jobs.backlog.tables.topic_rows import Earlier
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.access import opened_log

REPORT: Final = "report.html"
METRICS: Final = "metrics.prom"


@dataclass(frozen=True, slots=True)
class _Options:
    """The validated flags."""

    output: Output | None
    questions: Questions
    scan_bytes_max: int
    top: int


def analyse(job: JobContext) -> Summary:
    """Analyses the backlogs of the selected topics."""
    options = _checked(job)
    now_ms = job.clock.now_ms()
    gathered = run_async(_gather(job, options))
    for topic, error in gathered.failures:
        job.summary.failure(error, topic=topic)
    scanned = _scan(job, options, gathered)
    for topic, error in scanned.failures:
        job.summary.failure(error, topic=topic)
    if scanned.failures:
        count = len(scanned.failures)
        gathered.notes.append(f"Of {count} topics not all could be read; the summary says why.")
    rows, before_ms = _rows(options.output, gathered, scanned, now_ms)
    findings = attention.findings(rows)
    _count(job.summary, rows, findings)
    if options.output is not None:
        _write(options.output, options.top, rows, findings, gathered.notes, now_ms, before_ms)
    if not job.arguments.no_publish and not job.selection.topics:
        run_async(_publish(job, rows, findings, now_ms))
    return job.summary


def _checked(job: JobContext) -> _Options:
    """The validated flags. Exits the process if a flag is invalid, as argparse does."""
    try:
        return _options(job)
    except PreconditionFailed as error:
        refuse: Callable[[str], NoReturn] = job.arguments.refuse
        refuse(str(error))


def _options(job: JobContext) -> _Options:
    args = job.arguments
    default: Keeping | None = None
    if args.default_retention or args.default_ttl:
        ttl_ms = parse_time_ms(args.default_ttl or "0")
        default = Keeping(parse_retention(args.default_retention or "0"), max(0, ttl_ms // 1000))
    if args.scan_bytes_max < 0 or args.top < 1:
        raise PreconditionFailed("--scan-bytes-max must be 0 or more, --top 1 or more")
    scenarios = parse_scenarios(args.what_if)
    output = Output(args.output) if args.output else None
    return _Options(output, Questions(scenarios, default), args.scan_bytes_max, args.top)


async def _gather(job: JobContext, options: _Options) -> Gathered:
    async with opened_log(job.log) as log:
        topics = await job.topics(log.store)
        with job.progress.units("topics", len(topics)) as advance:
            return await gather(log, topics, options.questions, job.log, job.clock, advance)


def _scan(job: JobContext, options: _Options, gathered: Gathered) -> Scanned:
    if not options.scan_bytes_max:
        return Scanned()
    ranges: list[ScanRange] = []
    for facts in gathered.topics:
        ranges += scan_plan(facts.state, options.scan_bytes_max)
    tasks = tasks_of(ranges)
    if not tasks:
        return Scanned()
    if len(tasks) == 1 and not job.sessions.wanted:
        try:
            return scan_here(job.log, tasks[0], gathered.bookies)
        except TooManyRows:
            job.progress.say("too many keys for this process: Spark counts them")
    return scan_with_spark(job.spark, job.log, tasks, gathered.bookies, job.progress)


def _rows(
    output: Output | None, gathered: Gathered, scanned: Scanned, now_ms: int
) -> tuple[Rows, int | None]:
    """The tables, and the time of the earlier run that they are compared with."""
    before: Earlier = {}
    before_topics: Earlier = {}
    run = None if output is None else output.run_before(now_ms)
    if output is not None and run is not None:
        at_ms = run_ms(run)
        before = assemble.earlier(output.rows(SubscriptionRow, run), at_ms)
        before_topics = assemble.earlier(output.rows(TopicRow, run), at_ms)
    rows = assemble.rows_of(gathered, scanned, before, before_topics)
    return rows, None if run is None else run_ms(run)


def _write(
    output: Output,
    top: int,
    rows: Rows,
    findings: list[Finding],
    notes: list[str],
    now_ms: int,
    before_ms: int | None,
) -> None:
    """Writes all files. The table of subscriptions is last: it marks the run as complete."""
    run = run_name(now_ms)
    for name in sorted(TABLES, key=lambda name: name == "subscriptions"):
        output.put_table(name, run, arrow_table(name, getattr(rows, name)))
    page = report.html(rows, findings, notes, now_ms, before_ms, top)
    output.put(REPORT, page.encode())
    output.put(METRICS, metrics.text(rows, now_ms).encode())


def _count(summary: Summary, rows: Rows, findings: list[Finding]) -> None:
    """Adds totals and the worst subscriptions to the summary."""
    subscriptions = rows.subscriptions
    summary.metrics |= {
        "topics": len(rows.topics),
        "subscriptions": len(subscriptions),
        "backlogEntries": sum(row.entries or 0 for row in subscriptions),
        "backlogBytes": sum(row.bytes or 0 for row in subscriptions),
        "oldestAgeSeconds": max((row.age_s or 0 for row in subscriptions), default=0),
        "growing": sum(row.trend == "growing" for row in subscriptions),
        "stalled": sum(row.trend == "stalled" for row in subscriptions),
        "unreadable": sum(bool(row.error) for row in subscriptions),
        "bytesOnBookies": sum(row.bytes_on_bookies for row in rows.topics),
        "bytesCold": sum(row.bytes_cold for row in rows.topics),
        "bytesFreeable": sum(row.bytes_on_bookies for row in rows.what_if if row.scenario == "now"),
        "deadLetters": sum(row.messages for row in rows.flows if row.kind == "dead-letter"),
        "scannedBytes": sum(row.scanned_bytes for row in rows.topics),
        "findings": len(findings),
    }
    readable = [row for row in subscriptions if not row.error]
    messages = total([row.messages for row in readable])
    if messages is not None:
        exact = all(row.messages_exact for row in readable)
        delayed = sum(row.delayed_messages or 0 for row in readable)
        summary.metrics["delayedMessages"] = delayed
        summary.metrics |= {"backlogMessages": messages, "backlogMessagesExact": int(exact)}
    for row in worst(rows, WORST):
        summary.detail(**row)


async def _publish(job: JobContext, rows: Rows, findings: list[Finding], now_ms: int) -> None:
    """Writes a small record for each namespace, which brokers and the operator show."""
    async with opened_log(job.log) as log:
        for namespace in sorted({row.namespace for row in rows.topics}):
            record = published(namespace, rows, findings, now_ms)
            await log.store.put(record_key(namespace), msgspec.json.encode(record))
