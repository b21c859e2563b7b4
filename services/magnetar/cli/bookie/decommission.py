"""`magnetar bookie decommission`: drains a bookie, and reports when it may be removed.

`magnetar.autorecovery.drain.decommission` decides; this module waits and prints.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from magnetar.cli import cluster_access
from magnetar.cli.cluster_access import print_json

if TYPE_CHECKING:
    from magnetar.autorecovery.check.ledger_check import LedgerReport
    from magnetar.autorecovery.drain.decommission import (
        Decommission,
        InTheWay,
        Preflight,
        Remaining,
    )

DESCRIPTION: Final = """\
Marks the bookie as draining, so that it gets no new ledger and autorecovery moves its entries. Then
has the other bookies read every copy of every ledger that it held. The bookie may be removed only
if each ledger has its full number of proven copies there. The bookie may be running (better: it is
a source of copies) or dead. If the command is interrupted, the mark stays; run it again to
continue.

Refuses if too few bookies would be left, and names the ledgers that still need the bookie.

Exit status: 0 if the bookie may be removed, 1 if not, 2 if that could not be determined.
"""

POLL_INTERVAL_S: Final = 2.0
NO_AUDITOR_S_MAX: Final = 60.0
STUCK_POLLS_MAX: Final = 3
SHOWN_MAX: Final = 20


def add_parser(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the action `decommission`."""
    parser = actions.add_parser(
        "decommission",
        aliases=["decommissionbookie"],
        help="drain a bookie, and prove that it may be removed",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bookie-id", required=True, metavar="ID", help="the bookie's name")
    parser.add_argument(
        "--cancel",
        action="store_true",
        help="end the drain: remove the mark and the drain's record",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="report what a drain would move, and change nothing"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=0.0,
        metavar="S",
        help="give up after this time (0: never)",
    )
    cluster_access.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Drains the bookie; returns the exit code."""
    return cluster_access.run("bookie decommission", lambda: _run(args))


async def _run(args: argparse.Namespace) -> int:
    from magnetar.autorecovery.drain import drains
    from magnetar.autorecovery.drain.decommission import Decommission

    async with cluster_access.opened(args, "bookie decommission") as access:
        if args.cancel:
            was_draining = await drains.cancel(access.store, args.bookie_id)
            text = "cancelled" if was_draining else "was not draining"
            _print_result(args, text, bookie=args.bookie_id)
            return 0
        job = Decommission(access.store, access.bookies, access.clock, args.bookie_id)
        preflight = await job.preflight()
        _print_preflight(args, preflight)
        if preflight.problem or args.dry_run:
            return 1 if preflight.problem else 0
        await job.mark()
        while await _wait(args, job, preflight):
            code = await _prove(args, job, access)
            if code is not None:
                return code
        return 1


def _print_preflight(args: argparse.Namespace, preflight: "Preflight") -> None:
    if args.json:
        event = "refused" if preflight.problem else "begins"
        print_json({"event": event, "preflight": preflight})
        return
    state = "running" if preflight.living else "not running"
    print(
        f"bookie {args.bookie_id} ({state}) is needed by {preflight.ledgers} ledgers, about "
        f"{preflight.bytes} bytes; {preflight.others} other bookies take entries, "
        f"{preflight.needed} are needed"
    )
    if preflight.problem:
        print(f"refused: {preflight.problem}", file=sys.stderr)
    if preflight.unreadable:
        from magnetar.autorecovery.drain.decommission import unreadable_records

        print(f"cannot be proven: {unreadable_records(preflight.unreadable)}", file=sys.stderr)


async def _wait(args: argparse.Namespace, job: "Decommission", preflight: "Preflight") -> bool:
    """Waits until no ledger needs the bookie; returns False if the drain makes no progress."""
    from magnetar.autorecovery.drain.decommission import unreadable_records

    loop = asyncio.get_running_loop()
    started = loop.time()
    unattended_since: float | None = None
    stuck = 0
    with _progress(args, preflight.ledgers) as show:
        while True:
            left = await job.remaining()
            elapsed_s = loop.time() - started
            _print_left(args, show, preflight, left, elapsed_s)
            if not await job.is_still_marked():
                return _refuse(args, left, "the mark was removed meanwhile")
            if not left.ledgers and left.unreadable:
                return _refuse(args, left, unreadable_records(left.unreadable))
            if not left.ledgers:
                return True
            stuck = stuck + 1 if left.hopeless == left.ledgers else 0
            if stuck >= STUCK_POLLS_MAX:
                return _refuse(args, left, "autorecovery cannot move the remaining ledgers")
            if left.audited:
                unattended_since = None
            elif unattended_since is None:
                unattended_since = elapsed_s
            elif elapsed_s - unattended_since > NO_AUDITOR_S_MAX:
                why = "no process runs autorecovery: start `magnetar autorecovery`"
                return _refuse(args, left, why)
            if args.timeout_s and elapsed_s > args.timeout_s:
                return _refuse(args, left, f"not done within {args.timeout_s:g} s")
            await asyncio.sleep(POLL_INTERVAL_S)


def _progress(
    args: argparse.Namespace, ledgers: int
) -> AbstractContextManager[Callable[[int, str], None]]:
    if args.json:
        return nullcontext(lambda _done, _remark: None)
    if not sys.stderr.isatty():
        return nullcontext(_lines(ledgers))
    from magnetar.cli.ledger_progress import draining

    return draining(f"draining {args.bookie_id}", ledgers)


def _lines(ledgers: int) -> Callable[[int, str], None]:
    """Returns a function that prints a line when the progress has changed, for logs and pipes."""
    before: tuple[int, str] | None = None

    def show(done: int, remark: str) -> None:
        nonlocal before
        if before != (done, remark):
            print(f"{ledgers - done} of {ledgers} ledgers left, {remark}", flush=True)
        before = (done, remark)

    return show


def _print_left(
    args: argparse.Namespace,
    show: Callable[[int, str], None],
    preflight: "Preflight",
    left: "Remaining",
    elapsed_s: float,
) -> None:
    from magnetar.autorecovery.drain.decommission import eta_s

    eta = eta_s(preflight.bytes, left.bytes, elapsed_s)
    if args.json:
        print_json({"event": "progress", "eta_s": eta, "left": left})
        return
    rest = "" if eta is None or not left.bytes else f", about {eta:.0f} s more"
    remark = f" ({left.open} open, {left.hopeless} stuck)" if left.open or left.hopeless else ""
    show(max(0, preflight.ledgers - left.ledgers), f"{left.bytes} bytes{rest}{remark}")


def _refuse(args: argparse.Namespace, left: "Remaining", why: str) -> bool:
    """Prints the reason, the ledgers that need the bookie, and what to do; returns False."""
    if args.json:
        print_json({"event": "refused", "why": why, "left": left})
        return False
    print(f"refused: {why}. The bookie is still needed by {left.ledgers} ledgers:", file=sys.stderr)
    _print_in_the_way(left.in_the_way)
    print(
        "Add bookies or restart those that are missing, then run this again; "
        "`magnetar ledger check LEDGER` shows every copy; --cancel removes the mark.",
        file=sys.stderr,
    )
    return False


def _print_in_the_way(ledgers: "list[InTheWay]") -> None:
    for ledger in ledgers[:SHOWN_MAX]:
        print(f"  ledger {ledger.ledger_id}: {ledger.why}", file=sys.stderr)
    if len(ledgers) > SHOWN_MAX:
        print("  … and more (--json shows them)", file=sys.stderr)


async def _prove(
    args: argparse.Namespace, job: "Decommission", access: cluster_access.Access
) -> int | None:
    """Reads all copies on the other bookies; returns the exit code, 0 only if there are enough.

    Returns None if the bookie got a ledger meanwhile: then it must be drained and proven again.
    """
    from magnetar.autorecovery.drain.decommission import unreadable_records
    from magnetar.cli.ledger import make_checker, print_report, progress

    checker = make_checker(access, 0)
    with progress("ledgers proven", quiet=args.json) as advance:

        def on_report(report: "LedgerReport") -> None:
            advance(report.bytes)
            if report.verdict == "healthy":
                return
            if args.json:
                print_json(report)
            else:
                print_report(report)

        summary = await job.prove(checker, on_report)
    if summary.exit_code:
        why = "some ledgers have too few proven copies elsewhere"
        if summary.unreadable:
            why = unreadable_records(summary.unreadable)
        _print_result(args, f"refused: {why}", summary=summary)
        return summary.exit_code
    late = await job.late_arrivals()
    if late.unreadable:
        _print_result(args, f"refused: {unreadable_records(late.unreadable)}", summary=summary)
        return 1
    if not await job.is_still_marked():
        _print_result(args, "refused: the mark was removed meanwhile", summary=summary)
        return 1
    if late.ledgers or late.unproven:
        return None
    _print_result(
        args,
        f"bookie {args.bookie_id} may be removed: all {summary.ledgers} ledgers that it held have "
        f"their full number of proven copies elsewhere. It stays marked as draining; use --cancel "
        f"before a bookie of this name is used again",
        summary=summary,
    )
    return 0


def _print_result(args: argparse.Namespace, text: str, **more: object) -> None:
    if args.json:
        print_json({"event": "result", "text": text, **more})
    else:
        print(text)
