"""`magnetar ledger`: proves the copies of ledgers, and lists those that lack some.

Thin: it parses, connects, calls `magnetar.autorecovery` and prints.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from magnetar.cli import cluster_access
from magnetar.cli.cluster_access import print_json

if TYPE_CHECKING:
    from magnetar.autorecovery.check_all import CheckRun, CheckSummary
    from magnetar.autorecovery.ledger_check import LedgerChecker, LedgerReport
    from magnetar.autorecovery.records import Answer, UnderReplicated

CHECK_DESCRIPTION = """\
Has every bookie read every copy that it should have of every entry, and compares CRC-32C and length
among the copies. Nothing is sent but the checksums. Closed ledgers are checked whole, open ones as
far as they are confirmed; nothing is fenced, so it may run at any time.

Verdicts:
  healthy                every entry has its full number of equal, proven copies
  too few proven copies  some entries have fewer; with --repair they are written again
  divergent              copies differ; with --repair where a majority says which is right
  lost                   no bookie that could be asked has a copy
  could not tell         a bookie that is registered did not answer

Exit status: 0 if all are healthy, 1 if some are not, 2 if it could not be told.
"""

LIST_DESCRIPTION = """\
The ledgers that autorecovery knows to lack copies: since when, why, how often it tried, and what
came of it. Waiting ones are being worked on; parked ones wait until the set of bookies changes; of
lost ones some entries have no copy left, and what each bookie said of them is shown.
"""

FINDINGS_SHOWN_MAX = 10


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `ledger` and what belongs to it."""
    parser = subparsers.add_parser("ledger", help="prove the copies of ledgers")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="read and compare every copy of every entry",
        description=CHECK_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument(
        "ledgers", type=int, nargs="*", metavar="LEDGER", help="only these (default: all)"
    )
    check.add_argument(
        "--repair", action="store_true", help="write copies again that are missing or wrong"
    )
    check.add_argument(
        "--at-once", type=_positive, default=4, metavar="N", help="ledgers read together (4)"
    )
    check.add_argument(
        "--mb-per-s-max", type=int, default=0, metavar="N", help="read no faster (0: no bound)"
    )
    cluster_access.add_flags(check)
    listed = actions.add_parser(
        "underreplicated",
        aliases=["listunderreplicated"],
        help="list the ledgers that lack copies",
        description=LIST_DESCRIPTION,
    )
    cluster_access.add_flags(listed)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(args: argparse.Namespace) -> int:
    """Does what was asked; returns the exit code."""
    if args.action == "check":
        return cluster_access.run("ledger check", lambda: _check(args))
    return cluster_access.run("ledger underreplicated", lambda: _list(args))


async def _check(args: argparse.Namespace) -> int:
    from magnetar.autorecovery.check_all import CheckSummary, all_ledgers, these_ledgers

    summary = CheckSummary()
    async with cluster_access.opened(args, "ledger check") as access:
        check = make_run(access, args.at_once, args.mb_per_s_max, repair=args.repair)
        chosen = sorted(set(args.ledgers))
        ledgers = (
            these_ledgers(access.store, chosen, summary)
            if chosen
            else all_ledgers(access.store, summary)
        )
        with progress("ledgers checked", quiet=args.json) as advance:

            def on_report(report: "LedgerReport") -> None:
                advance(report.bytes)
                if args.json:
                    print_json(report)
                elif report.verdict != "healthy" or chosen:
                    print_report(report)

            await check.run(ledgers, on_report, summary)
    missing = len(chosen) - summary.ledgers if chosen else 0
    if args.json:
        print_json({"summary": summary})
    else:
        print_summary(summary)
        if missing:
            print(f"{missing} of the named ledgers do not exist")
    return summary.exit_code or (1 if missing else 0)


def make_run(
    access: cluster_access.Access, at_once: int, mb_per_s_max: int, *, repair: bool
) -> "CheckRun":
    """A check, which repairs if it is to."""
    from magnetar.autorecovery.check_all import CheckRun
    from magnetar.autorecovery.copying import Copier
    from magnetar.autorecovery.ledger_check import LedgerChecker
    from magnetar.autorecovery.proving import Prover
    from magnetar.autorecovery.rate import ByteRate
    from magnetar.autorecovery.repairing import Repairer
    from magnetar.autorecovery.settings import AutorecoverySettings
    from magnetar.autorecovery.stats import AutorecoveryStats

    repairing = None
    if repair:
        settings = AutorecoverySettings()
        rate = ByteRate(mb_per_s_max << 20, access.clock)
        timeout_s = settings.request_timeout_s
        prover = Prover(access.bookies, rate, timeout_s)
        stats = AutorecoveryStats(access.clock, settings.stalled_after_s)
        copier = Copier(access.bookies, settings, rate, stats)
        repairer = Repairer(prover, copier)
        repairing = LedgerChecker(access.bookies, prover, repairer, timeout_s)
    checker = make_checker(access, mb_per_s_max)
    return CheckRun(access.store, checker, repairing, at_once=at_once)


def make_checker(access: cluster_access.Access, mb_per_s_max: int) -> "LedgerChecker":
    """Reads and compares, and changes nothing."""
    from magnetar.autorecovery.ledger_check import LedgerChecker
    from magnetar.autorecovery.proving import Prover
    from magnetar.autorecovery.rate import ByteRate
    from magnetar.autorecovery.settings import AutorecoverySettings

    timeout_s = AutorecoverySettings().request_timeout_s
    prover = Prover(access.bookies, ByteRate(mb_per_s_max << 20, access.clock), timeout_s)
    return LedgerChecker(access.bookies, prover, None, timeout_s)


def progress(text: str, *, quiet: bool) -> AbstractContextManager[Callable[[int], None]]:
    """A line on a terminal that counts ledgers and bytes; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(lambda _size: None)
    from magnetar.cli.ledger_progress import counting

    return counting(text)


def print_report(report: "LedgerReport") -> None:
    """One ledger, with what is wrong with it."""
    text = f"ledger {report.ledger_id}: {report.verdict} ({report.entries} entries"
    text += f", {report.entries_wrong} of them wrong)" if report.entries_wrong else ")"
    if report.repaired_entries:
        text += f"; {report.repaired_entries} copies written again"
    print(text)
    for finding in report.findings[:FINDINGS_SHOWN_MAX]:
        print(f"  {_range(finding.first, finding.last)}: {finding.verdict}")
        for answer in finding.answers:
            print(f"    {_said(answer)}")
    if len(report.findings) > FINDINGS_SHOWN_MAX:
        print(f"  … and {len(report.findings) - FINDINGS_SHOWN_MAX} more (--json shows them)")
    if report.repair_failed:
        print(f"  not repaired: {report.repair_failed}")


def print_summary(summary: "CheckSummary") -> None:
    """The last lines."""
    for key in summary.unreadable:
        print(f"{key}: no ledger's record")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(summary.verdicts.items()))
    print(
        f"{summary.ledgers} ledgers, {summary.entries} entries, {summary.bytes} bytes: "
        f"{counts or 'nothing to check'}"
    )


async def _list(args: argparse.Namespace) -> int:
    from magnetar.autorecovery.records import RECORDS_PREFIX, readable

    async with cluster_access.opened(args, "ledger underreplicated") as access:
        count = 0
        for name in await access.store.children(RECORDS_PREFIX):
            for stored in await access.store.list(f"{RECORDS_PREFIX}{name}/"):
                record = readable(stored.key, stored.value)
                if record is None:
                    continue
                count += 1
                if args.json:
                    print_json(record)
                else:
                    _print_record(record, access.clock.now_ms())
        if not args.json:
            print(f"{count or 'no'} ledgers lack copies")
    return 0


def _print_record(record: "UnderReplicated", now_ms: int) -> None:
    age_s = max(0, now_ms - record.since_ms) // 1000
    print(
        f"ledger {record.ledger_id}: {record.state}, for {age_s} s, {record.attempts} attempts; "
        f"{'; '.join(record.reasons)}"
    )
    if record.detail:
        print(f"  {record.detail}")
    for lost in record.lost[:FINDINGS_SHOWN_MAX]:
        print(f"  lost: {_range(lost.first, lost.last)}")
        for answer in lost.answers:
            print(f"    {_said(answer)}")


def _range(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"


def _said(answer: "Answer") -> str:
    return f"bookie {answer.bookie.bookie_id} ({answer.bookie.incarnation}): {answer.said}"
