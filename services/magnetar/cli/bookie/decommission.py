"""`magnetar bookie decommission`: empties a bookie, and says when it may be removed.

Thin: `magnetar.autorecovery.decommission` decides; this waits and prints.
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
    from magnetar.autorecovery.decommission import Decommission, InTheWay, Left, Preflight
    from magnetar.autorecovery.ledger_check import LedgerReport

DESCRIPTION: Final = """\
Marks the bookie as draining, so that no new ledger goes to it and autorecovery moves what it has;
waits for that; then has every copy of every ledger that it held read on the other bookies, and only
if each has its full number of proven copies there says that the bookie may be removed. The bookie
may be running (better: it is a source of copies) or dead. Breaking off changes nothing: the mark
stays, and the same command goes on.

Refuses where too few bookies would be left, and names the ledgers that stand in the way.

Exit status: 0 if it may be removed, 1 if not, 2 if it could not be told.
"""

LOOK_INTERVAL_S: Final = 2.0
NO_AUDITOR_S_MAX: Final = 60.0
STUCK_LOOKS_MAX: Final = 3
SHOWN_MAX: Final = 20


def add_parser(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the action."""
    parser = actions.add_parser(
        "decommission",
        aliases=["decommissionbookie"],
        help="empty a bookie, and prove that it may be removed",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bookie-id", required=True, metavar="ID", help="the bookie's name")
    parser.add_argument(
        "--cancel",
        action="store_true",
        help="end the drain: take the mark away, and the drain's record",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what it would mean, and change nothing"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=0.0, metavar="S", help="wait no longer (0: no bound)"
    )
    cluster_access.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Does it; returns the exit code."""
    return cluster_access.run("bookie decommission", lambda: _run(args))


async def _run(args: argparse.Namespace) -> int:
    from magnetar.autorecovery import drains
    from magnetar.autorecovery.decommission import Decommission

    async with cluster_access.opened(args, "bookie decommission") as access:
        if args.cancel:
            there = await drains.cancel(access.store, args.bookie_id)
            _say(args, "cancelled" if there else "was not draining", bookie=args.bookie_id)
            return 0
        job = Decommission(access.store, access.bookies, access.clock, args.bookie_id)
        first = await job.look_first()
        _show_first(args, first)
        if first.problem or args.dry_run:
            return 1 if first.problem else 0
        await job.mark()
        while await _wait(args, job, first):
            code = await _prove(args, job, access)
            if code is not None:
                return code
        return 1


def _show_first(args: argparse.Namespace, first: "Preflight") -> None:
    if args.json:
        print_json({"event": "refused" if first.problem else "begins", "preflight": first})
        return
    alive = "running" if first.living else "not running"
    print(
        f"bookie {args.bookie_id} ({alive}) is needed by {first.ledgers} ledgers, about "
        f"{first.bytes} bytes; {first.others} other bookies take entries, {first.needed} are needed"
    )
    if first.problem:
        print(f"refused: {first.problem}", file=sys.stderr)
    if first.unreadable:
        from magnetar.autorecovery.decommission import unreadable_records

        print(f"cannot be proven: {unreadable_records(first.unreadable)}", file=sys.stderr)


async def _wait(args: argparse.Namespace, job: "Decommission", first: "Preflight") -> bool:
    """Waits until no ledger needs the bookie; False where that is not to be expected."""
    from magnetar.autorecovery.decommission import unreadable_records

    loop = asyncio.get_running_loop()
    began = loop.time()
    unattended_since: float | None = None
    stuck = 0
    with _progress(args, first.ledgers) as show:
        while True:
            left = await job.look()
            elapsed_s = loop.time() - began
            _show_left(args, show, first, left, elapsed_s)
            if not await job.still_marked():
                return _refuse(args, left, "the mark was taken away meanwhile")
            if not left.ledgers and left.unreadable:
                return _refuse(args, left, unreadable_records(left.unreadable))
            if not left.ledgers:
                return True
            stuck = stuck + 1 if left.hopeless == left.ledgers else 0
            if stuck >= STUCK_LOOKS_MAX:
                return _refuse(args, left, "autorecovery cannot move what is left")
            if left.audited:
                unattended_since = None
            elif unattended_since is None:
                unattended_since = elapsed_s
            elif elapsed_s - unattended_since > NO_AUDITOR_S_MAX:
                return _refuse(
                    args, left, "nobody runs autorecovery: start `magnetar autorecovery`"
                )
            if args.timeout_s and elapsed_s > args.timeout_s:
                return _refuse(args, left, f"not done within {args.timeout_s:g} s")
            await asyncio.sleep(LOOK_INTERVAL_S)


def _progress(
    args: argparse.Namespace, ledgers: int
) -> AbstractContextManager[Callable[[int, str], None]]:
    if args.json:
        return nullcontext(lambda _done, _remark: None)
    if not sys.stderr.isatty():
        return nullcontext(_lines(ledgers))
    from magnetar.cli.ledger_progress import draining

    return draining(f"emptying {args.bookie_id}", ledgers)


def _lines(ledgers: int) -> Callable[[int, str], None]:
    """Off a terminal: a line whenever something has changed."""
    before: tuple[int, str] | None = None

    def show(done: int, remark: str) -> None:
        nonlocal before
        if before != (done, remark):
            print(f"{ledgers - done} of {ledgers} ledgers left, {remark}", flush=True)
        before = (done, remark)

    return show


def _show_left(
    args: argparse.Namespace,
    show: Callable[[int, str], None],
    first: "Preflight",
    left: "Left",
    elapsed_s: float,
) -> None:
    from magnetar.autorecovery.decommission import eta_s

    eta = eta_s(first.bytes, left.bytes, elapsed_s)
    if args.json:
        print_json({"event": "progress", "eta_s": eta, "left": left})
        return
    soon = "" if eta is None or not left.bytes else f", about {eta:.0f} s more"
    remark = f" ({left.open} open, {left.hopeless} stuck)" if left.open or left.hopeless else ""
    show(max(0, first.ledgers - left.ledgers), f"{left.bytes} bytes{soon}{remark}")


def _refuse(args: argparse.Namespace, left: "Left", why: str) -> bool:
    """Names what stands in the way, and what to do."""
    if args.json:
        print_json({"event": "refused", "why": why, "left": left})
        return False
    print(f"refused: {why}. The bookie is still needed by {left.ledgers} ledgers:", file=sys.stderr)
    _print_in_the_way(left.in_the_way)
    print(
        "Add bookies or bring back those that are missing, then run this again; "
        "`magnetar ledger check LEDGER` shows every copy; --cancel takes the mark away.",
        file=sys.stderr,
    )
    return False


def _print_in_the_way(ledgers: "list[InTheWay]") -> None:
    for one in ledgers[:SHOWN_MAX]:
        print(f"  ledger {one.ledger_id}: {one.why}", file=sys.stderr)
    if len(ledgers) > SHOWN_MAX:
        print("  … and more (--json shows them)", file=sys.stderr)


async def _prove(
    args: argparse.Namespace, job: "Decommission", access: cluster_access.Access
) -> int | None:
    """Reads all copies elsewhere; 0 only if every ledger has enough of them.

    None: a ledger came to the bookie meanwhile, so that it has to be emptied and proven again.
    """
    from magnetar.autorecovery.decommission import unreadable_records
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
        _say(args, f"refused: {why}", summary=summary)
        return summary.exit_code
    late = await job.late()
    if late.unreadable:
        _say(args, f"refused: {unreadable_records(late.unreadable)}", summary=summary)
        return 1
    if not await job.still_marked():
        _say(args, "refused: the mark was taken away meanwhile", summary=summary)
        return 1
    if late.ledgers or late.unproven:
        return None
    _say(
        args,
        f"bookie {args.bookie_id} may be removed: all {summary.ledgers} ledgers that it held have "
        f"their full number of proven copies elsewhere. It stays marked as draining; --cancel, "
        f"should a bookie of this name ever be used again",
        summary=summary,
    )
    return 0


def _say(args: argparse.Namespace, text: str, **more: object) -> None:
    if args.json:
        print_json({"event": "result", "text": text, **more})
    else:
        print(text)
