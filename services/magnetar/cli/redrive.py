"""`magnetar redrive`: moves dead letters back to the topics that they come from.

The brokers move them. The command starts that, one partition after the other, shows the progress,
starts it again at the next owner if the topic moves, and stops it on Ctrl-C.
"""

import argparse
import contextlib
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from magnetar.cli import admin_rest

if TYPE_CHECKING:
    from magnetar.core.names import TopicName
    from magnetar.documents.redrive import RedriveProgress

FAILED: Final = 1
STAYED: Final = 3
"""Exit code if matching messages stay."""
INTERRUPTED: Final = 130
NOT_FOUND: Final = 404

DESCRIPTION: Final = """\
Moves the messages of a dead letter topic to the topics that they come from (the property
REAL_TOPIC), or to one topic, each exactly once. It can be stopped, or die, and be started again:
it continues. Needs transactions on the brokers. docs/use/dead-letters.md explains it.

Exit status: 0 all matching messages were moved, 1 it has failed, 3 some matching messages stay
(the reasons are printed), 130 it was stopped by Ctrl-C.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `redrive`."""
    parser = subparsers.add_parser(
        "redrive",
        help="move dead letters back to the topics that they come from",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", help="such as persistent://public/default/orders-worker-DLQ")
    parser.add_argument(
        "--subscription",
        default="dlq",
        type=_name,
        help="the subscription that keeps the messages (dlq)",
    )
    parser.add_argument("--to", metavar="TOPIC", help="move all to this topic")
    parser.add_argument(
        "--filter", metavar="EXPRESSION", help="only messages of which this is true: region = 'eu'"
    )
    parser.add_argument("--rate", type=_rate, metavar="N", help="at most N messages per second")
    parser.add_argument("--limit", type=_limit, metavar="N", help="at most N messages")
    parser.add_argument(
        "--dry-run", action="store_true", help="count the messages, and move nothing"
    )
    admin_rest.add_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _rate(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (rate := float(text)) < float("inf"):
            return rate
    raise argparse.ArgumentTypeError(f"{text} is no number of messages per second above 0")


def _limit(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (limit := int(text)) > 0:
            return limit
    raise argparse.ArgumentTypeError(f"{text} is no number of messages, 1 or more")


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name of a subscription is not empty")
    return text


@dataclass(slots=True)
class Totals:
    """The counts of all partitions."""

    examined: int = 0
    matched: int = 0
    moved: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    partitions: list[dict[str, Any]] = field(default_factory=list)

    def add(self, topic: str, progress: "RedriveProgress") -> None:
        """Adds the counts of a topic or partition."""
        self.examined += progress.examined
        self.matched += progress.matched
        self.moved += progress.moved
        self.skipped.update(progress.skipped)
        self.partitions.append(
            {
                "topic": topic,
                "state": progress.state,
                "moved": progress.moved,
                "lastPosition": progress.last_position,
                "error": progress.error,
            }
        )

    def counted(self, *, dry_run: bool) -> int:
        """The number of messages that count for the limit."""
        return self.matched - self.skipped.total() if dry_run else self.moved

    def document(self, *, dry_run: bool) -> dict[str, Any]:
        """Returns the JSON document of the result."""
        return {
            "dryRun": dry_run,
            "examined": self.examined,
            "matched": self.matched,
            "moved": self.moved,
            "skipped": dict(self.skipped),
            "partitions": self.partitions,
        }

    def line(self, *, dry_run: bool) -> str:
        """Returns the result as text."""
        moved = f"{self.counted(dry_run=dry_run)} {'would move' if dry_run else 'moved'}"
        text = f"{self.examined} examined, {self.matched} matched, {moved}"
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return f"{text}; stay: {reasons}" if reasons else text


def run(args: argparse.Namespace) -> int:
    """Moves the messages; returns the exit code of DESCRIPTION."""
    import msgspec

    from magnetar.core.errors import MagnetarError
    from magnetar.core.names import parse_topic

    totals = Totals()
    code = 0
    try:
        code = _run(args, parse_topic(args.topic), totals)
    except (MagnetarError, msgspec.MsgspecError, ValueError, KeyError) as error:
        print(f"magnetar redrive: {error}", file=sys.stderr)
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    if args.json:
        print(json.dumps(totals.document(dry_run=args.dry_run), indent=2))
    elif totals.partitions:
        print(totals.line(dry_run=args.dry_run))
    return STAYED if code == 0 and totals.skipped else code


def _run(args: argparse.Namespace, topic: "TopicName", totals: Totals) -> int:
    missing: admin_rest.AdminFailed | None = None
    for part in _parts(args, topic):
        if args.limit is not None and totals.counted(dry_run=args.dry_run) >= args.limit:
            break
        try:
            progress, interrupted = _redrive(args, part, totals)
        except admin_rest.AdminFailed as error:
            if error.status != NOT_FOUND or part == topic:
                raise
            missing = error  # a partition that no letter was sent to has no subscription
            continue
        totals.add(str(part), progress)
        if interrupted:
            return INTERRUPTED
        if progress.state != "finished":
            reason = progress.error or f"it was {progress.state} by another request"
            print(f"magnetar redrive: {part}: {reason}", file=sys.stderr)
            return FAILED
    if missing is not None and not totals.partitions:
        raise missing
    return 0


def _parts(args: argparse.Namespace, topic: "TopicName") -> list["TopicName"]:
    answer = json.loads(admin_rest.get(args, f"{_path(topic)}/partitions"))
    return [topic.partition(index) for index in range(answer["partitions"])] or [topic]


def _redrive(
    args: argparse.Namespace, topic: "TopicName", totals: Totals
) -> tuple["RedriveProgress", bool]:
    """Moves the messages of one partition; returns its progress, and whether Ctrl-C stopped it."""
    import msgspec

    from magnetar.cli.redrive_part import Part
    from magnetar.documents.redrive import RedriveProgress

    order = json.dumps(_order(args, totals)).encode()
    path = f"{_path(topic)}/subscription/{quote(args.subscription, safe='')}/redrive"

    def ask(method: str, id_: str) -> RedriveProgress:
        query = f"?id={quote(id_, safe='')}" if id_ else ""
        content = order if method == "POST" else None
        body = admin_rest.send(args, method, path + query, content)
        return msgspec.json.decode(body, type=RedriveProgress)

    shown = _Shown(str(topic))
    try:
        limited = args.limit is not None and not args.dry_run
        return Part(str(topic), ask, shown.update, limited=limited).run()
    finally:
        shown.end()


def _order(args: argparse.Namespace, totals: Totals) -> dict[str, Any]:
    limit = args.limit
    if limit is not None:
        limit -= totals.counted(dry_run=args.dry_run)
    return {
        "to": args.to,
        "filter": args.filter,
        "rate": args.rate,
        "limit": limit,
        "dryRun": args.dry_run,
    }


def _path(topic: "TopicName") -> str:
    return f"/admin/v2/{topic.domain}/{topic.tenant}/{topic.namespace_local}/{topic.encoded_local}"


class _Shown:
    """The progress on a terminal; nothing elsewhere."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._lit = sys.stderr.isatty()
        self._width = 0

    def update(self, progress: "RedriveProgress") -> None:
        if self._lit:
            text = f"{self._topic}: {progress.examined} examined, {progress.moved} moved"
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def end(self) -> None:
        if self._width:
            print(file=sys.stderr)
