"""`magnetar explain`: prints why messages are not delivered, or not published, and what to do."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from magnetar.cli import admin_rest

if TYPE_CHECKING:
    from magnetar.core.names import TopicName
    from magnetar.documents.explain import DiskUse, Explanation, Finding

FAILED: Final = 1
FOUND: Final = 3
"""Exit code if something is wrong."""

DESCRIPTION: Final = """\
Prints the reasons in order: the first one is why messages are not delivered (or not published),
with its evidence and the next step. docs/run/explain.md lists the codes.

Exit status: 0 nothing is wrong, 1 the question could not be answered, 3 something is wrong.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `explain`."""
    parser = subparsers.add_parser(
        "explain",
        help="say why messages are not delivered or not published",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    subscription = kinds.add_parser(
        "subscription", help="why messages, or one message, are not delivered"
    )
    subscription.add_argument("topic", help="such as persistent://public/default/orders")
    subscription.add_argument("subscription")
    subscription.add_argument(
        "--message", metavar="ID", help="ledger:entry or ledger:entry:batch, as clients print it"
    )
    topic = kinds.add_parser(
        "topic", help="why producers are refused or slow, and what takes the topic's disk space"
    )
    topic.add_argument("topic", help="such as persistent://public/default/orders")
    kinds.add_parser("codes", help="list the codes of reasons and their meanings")
    for kind in (subscription, topic):
        admin_rest.add_flags(kind)
        kind.add_argument("--json", action="store_true", help="print the cluster's JSON document")


def run(args: argparse.Namespace) -> int:
    """Asks the cluster and prints its answer; returns the exit code of DESCRIPTION."""
    if args.kind == "codes":
        return _print_codes()
    import msgspec

    from magnetar.core.errors import MagnetarError
    from magnetar.core.names import parse_topic
    from magnetar.documents.explain import FINE, Explanation

    try:
        body = admin_rest.get(args, _path(args, parse_topic(args.topic)))
        answer = msgspec.json.decode(body, type=Explanation)
    except (MagnetarError, msgspec.MsgspecError) as error:
        print(f"magnetar explain: {error}", file=sys.stderr)
        return FAILED
    if args.json:
        sys.stdout.write(msgspec.json.format(body).decode() + "\n")
    else:
        for line in lines(answer):
            print(line)
    wrong = [finding for finding in answer.findings[:1] if finding.code not in FINE]
    return FOUND if wrong else 0


def _print_codes() -> int:
    from magnetar.broker.explain.codes import MEANINGS

    width = max(map(len, MEANINGS))
    for code, meaning in MEANINGS.items():
        print(f"{code.value:{width}}  {meaning}")
    return 0


def _path(args: argparse.Namespace, topic: "TopicName") -> str:
    path = f"/admin/v2/{topic.domain}/{topic.tenant}/{topic.namespace_local}/{topic.encoded_local}"
    if args.kind == "topic":
        return path + "/explain"
    path += f"/subscription/{quote(args.subscription, safe='')}/explain"
    return path if args.message is None else f"{path}?messageId={quote(args.message)}"


def lines(answer: "Explanation") -> Iterator[str]:
    """Yields the answer as text."""
    subject = answer.topic
    if answer.subscription:
        subject += f", subscription {answer.subscription}"
    if answer.message_id:
        subject += f", message {answer.message_id}"
    yield f"{subject} (by {answer.broker} at {answer.at})"
    for number, finding in enumerate(answer.findings, 1):
        yield ""
        yield from _finding(number, finding)
    if answer.disk is not None:
        yield ""
        yield from _disk(answer.disk)


def _finding(number: int, finding: "Finding") -> Iterator[str]:
    where = f" [{finding.partition}]" if finding.partition else ""
    yield f"{number}. {finding.code}{where}: {finding.summary}"
    if finding.since:
        yield f"   since: {finding.since}"
    for name, value in finding.evidence.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"   {name}:"
            for item in value:
                yield "     " + ", ".join(
                    f"{key}={text}" for key, text in item.items() if text is not None
                )
        elif value not in (None, "", []):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            yield f"   {name}: {shown}"
    yield f"   next: {finding.next_step.text}"
    if finding.next_step.command:
        yield f"     {finding.next_step.command}"


def _disk(disk: "DiskUse") -> Iterator[str]:
    about = "" if disk.exact else " (some lengths could not be read)"
    yield f"{disk.bytes} bytes on bookies{about}:"
    for reason, size in sorted(disk.by_reason.items(), key=lambda item: -item[1]):
        yield f"   {size:>16}  {reason}"
    for ledger in disk.ledgers:
        detail = f", {ledger.detail}" if ledger.detail else ""
        yield (
            f"   ledger {ledger.ledger_id}: {ledger.bytes} bytes in {ledger.copies} copies, "
            f"{ledger.reason}{detail}"
        )
