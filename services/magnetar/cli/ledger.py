"""`magnetar ledger`: proves the copies of ledgers, and lists under-replicated ledgers.

`magnetar.autorecovery` checks and repairs; this module connects and prints.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from magnetar.cli import cluster_access
from magnetar.cli.cluster_access import print_json

if TYPE_CHECKING:
    from magnetar.autorecovery.check.check_all import CheckRun, CheckSummary
    from magnetar.autorecovery.check.ledger_check import LedgerChecker, LedgerReport
    from magnetar.autorecovery.records import Answer, UnderReplicated

CHECK_DESCRIPTION = """\
Has every bookie read every copy of every entry that it should have, and compares CRC-32C and length
among the copies. Bookies send only the checksums. Closed ledgers are checked completely, open ones
up to the last confirmed entry. The check fences nothing, so it may run at any time.

Verdicts:
  healthy                every entry has its full number of equal, proven copies
  too few proven copies  some entries have fewer; --repair writes the missing copies
  divergent              copies differ; --repair overwrites a minority with the majority's copy
  lost                   no reachable bookie has a copy
  could not tell         a registered bookie did not answer

Exit status: 0 if all are healthy, 1 if some are not, 2 if that could not be determined.
"""

LIST_DESCRIPTION = """\
Lists the ledgers that autorecovery recorded as under-replicated: since when, why, how often it
tried to re-replicate them, and the result. Waiting ledgers are in progress. Parked ledgers wait
until the set of bookies changes. Lost ledgers have entries without any copy; the answers of the
bookies are shown.
"""

FINDINGS_SHOWN_MAX = 10


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `ledger` and its actions."""
    parser = subparsers.add_parser("ledger", help="prove the copies of ledgers")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="read and compare every copy of every entry",
        description=CHECK_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument(
        "ledgers", type=int, nargs="*", metavar="LEDGER", help="check only these (default: all)"
    )
    check.add_argument(
        "--repair", action="store_true", help="rewrite copies that are missing or wrong"
    )
    check.add_argument(
        "--at-once", type=_positive, default=4, metavar="N", help="ledgers to check at a time (4)"
    )
    check.add_argument(
        "--mb-per-s-max", type=int, default=0, metavar="N", help="limit of the read rate (0: none)"
    )
    cluster_access.add_flags(check)
    listed = actions.add_parser(
        "underreplicated",
        aliases=["listunderreplicated"],
        help="list under-replicated ledgers",
        description=LIST_DESCRIPTION,
    )
    cluster_access.add_flags(listed)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns the exit code."""
    if args.action == "check":
        return cluster_access.run("ledger check", lambda: _check(args))
    return cluster_access.run("ledger underreplicated", lambda: _list(args))


async def _check(args: argparse.Namespace) -> int:
    from magnetar.autorecovery.check.check_all import CheckSummary, all_ledgers, selected_ledgers

    summary = CheckSummary()
    async with cluster_access.opened(args, "ledger check") as access:
        check = make_run(access, args.at_once, args.mb_per_s_max, repair=args.repair)
        ledger_ids = sorted(set(args.ledgers))
        ledgers = (
            selected_ledgers(access.store, ledger_ids, summary)
            if ledger_ids
            else all_ledgers(access.store, summary)
        )
        with progress("ledgers checked", quiet=args.json) as advance:

            def on_report(report: "LedgerReport") -> None:
                advance(report.bytes)
                if args.json:
                    print_json(report)
                elif report.verdict != "healthy" or ledger_ids:
                    print_report(report)

            await check.run(ledgers, on_report, summary)
    missing = len(ledger_ids) - summary.ledgers if ledger_ids else 0
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
    """A check of ledgers, which also repairs them if `repair` is set."""
    from magnetar.autorecovery.check.check_all import CheckRun
    from magnetar.autorecovery.check.ledger_check import LedgerChecker
    from magnetar.autorecovery.check.prover import Prover
    from magnetar.autorecovery.check.repairer import Repairer
    from magnetar.autorecovery.copier import Copier
    from magnetar.autorecovery.rate import ByteRate
    from magnetar.autorecovery.settings import AutorecoverySettings
    from magnetar.autorecovery.stats import AutorecoveryStats

    repairing_checker = None
    if repair:
        settings = AutorecoverySettings()
        rate = ByteRate(mb_per_s_max << 20, access.clock)
        timeout_s = settings.request_timeout_s
        prover = Prover(access.bookies, rate, timeout_s)
        stats = AutorecoveryStats(access.clock, settings.stalled_after_s)
        copier = Copier(access.bookies, settings, rate, stats)
        repairer = Repairer(prover, copier)
        repairing_checker = LedgerChecker(access.bookies, prover, repairer, timeout_s)
    checker = make_checker(access, mb_per_s_max)
    return CheckRun(access.store, checker, repairing_checker, at_once=at_once)


def make_checker(access: cluster_access.Access, mb_per_s_max: int) -> "LedgerChecker":
    """A checker that reads and compares copies, and changes nothing."""
    from magnetar.autorecovery.check.ledger_check import LedgerChecker
    from magnetar.autorecovery.check.prover import Prover
    from magnetar.autorecovery.rate import ByteRate
    from magnetar.autorecovery.settings import AutorecoverySettings

    timeout_s = AutorecoverySettings().request_timeout_s
    prover = Prover(access.bookies, ByteRate(mb_per_s_max << 20, access.clock), timeout_s)
    return LedgerChecker(access.bookies, prover, None, timeout_s)


def progress(text: str, *, quiet: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Counts ledgers and bytes on a terminal; call the result with the bytes of each ledger."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(lambda _size: None)
    from magnetar.cli.ledger_progress import counting

    return counting(text)


def print_report(report: "LedgerReport") -> None:
    """Prints a ledger's verdict and its faulty entries."""
    text = f"ledger {report.ledger_id}: {report.verdict} ({report.entries} entries"
    text += f", {report.entries_wrong} of them wrong)" if report.entries_wrong else ")"
    if report.repaired_entries:
        text += f"; {report.repaired_entries} copies rewritten"
    print(text)
    for finding in report.findings[:FINDINGS_SHOWN_MAX]:
        print(f"  {_range(finding.first, finding.last)}: {finding.verdict}")
        for answer in finding.answers:
            print(f"    {_answer_text(answer)}")
    if len(report.findings) > FINDINGS_SHOWN_MAX:
        print(f"  … and {len(report.findings) - FINDINGS_SHOWN_MAX} more (--json shows them)")
    if report.repair_failed:
        print(f"  not repaired: {report.repair_failed}")


def print_summary(summary: "CheckSummary") -> None:
    """Prints the totals."""
    for key in summary.unreadable:
        print(f"{key}: is not a ledger's record")
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
            print(f"    {_answer_text(answer)}")


def _range(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"


def _answer_text(answer: "Answer") -> str:
    return f"bookie {answer.bookie.bookie_id} ({answer.bookie.incarnation}): {answer.text}"
