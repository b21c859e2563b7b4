"""`magnetar subscriptions`: list, create, delete; peek at, skip and expire messages; reset."""

import argparse
import json
import struct
from collections.abc import Iterator
from typing import Any

from magnetar.cli import admin_rest
from magnetar.cli.administration import calls, show
from magnetar.cli.administration.calls import Verb, argument
from magnetar.cli.administration.topics import SUBSCRIPTION_COLUMNS, subscription_rows
from magnetar.cli.messages.texts import Position, position
from magnetar.core.relative_time import duration_s

PEEK_DEFAULT = 1
SHOWN_CHARACTERS_MAX = 200
_LATEST = 2**63 - 1


def _list(args: argparse.Namespace) -> None:
    listed = calls.stats_of(args, calls.topic_of(args.topic))["subscriptions"]
    show.rows(args, listed, SUBSCRIPTION_COLUMNS, subscription_rows(listed))


def _create(args: argparse.Namespace) -> None:
    start: Position = args.position
    if start.kind == "time":
        raise calls.WrongArgument("--position is earliest, latest or a message id; then `reset`")
    ledger, entry, partition, _ = start.message_id
    if start.kind == "earliest":
        ledger, entry = -1, -1
    elif start.kind == "latest":
        ledger, entry = _LATEST, _LATEST
    document = {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition}
    admin_rest.send(args, "PUT", calls.subscription_path(args), json.dumps(document).encode())
    calls.done(args, f"created {args.subscription}")


def _delete(args: argparse.Namespace) -> None:
    path = calls.subscription_path(args)
    admin_rest.send(args, "DELETE", path + ("?force=true" if args.force else ""))
    calls.done(args, f"deleted {args.subscription}")


def _stats(args: argparse.Namespace) -> None:
    listed = calls.stats_of(args, calls.topic_of(args.topic))["subscriptions"]
    if args.subscription not in listed:
        raise admin_rest.AdminFailed(
            f"{args.topic} has no subscription {args.subscription}", admin_rest.NOT_FOUND
        )
    item = listed[args.subscription]
    simple = {
        name: value for name, value in item.items() if isinstance(value, str | bool | int | float)
    }
    show.fields(args, item, simple)
    consumers = item.get("consumers", [])
    if consumers and not args.json:
        columns = ("consumer", "address", "connected", "permits", "unacked", "msg/s")
        print()
        for line in show.table(columns, [_consumer(consumer) for consumer in consumers]):
            print(line)


def _consumer(item: dict[str, Any]) -> list[object]:
    return [
        item.get("consumerName", ""),
        item.get("address", ""),
        item.get("connectedSince", ""),
        item.get("availablePermits", 0),
        item.get("unackedMessages", 0),
        float(item.get("msgRateOut", 0.0)),
    ]


def _backlog(args: argparse.Namespace) -> None:
    listed = calls.stats_of(args, calls.topic_of(args.topic))["subscriptions"]
    counts = {name: item.get("msgBacklog", 0) for name, item in sorted(listed.items())}
    show.fields(args, counts, counts)


def _peek(args: argparse.Namespace) -> None:
    if calls.partitions_of(args, calls.topic_of(args.topic)):
        raise calls.WrongArgument(f"peek at a partition: {args.topic}-partition-0")
    documents: list[dict[str, Any]] = []
    for number in range(1, args.count + 1):
        path = f"{calls.subscription_path(args)}/position/{number}"
        try:
            answer = admin_rest.exchange(args, "GET", path)
        except admin_rest.AdminFailed as error:
            if error.status == admin_rest.NOT_FOUND and documents:
                break  # fewer entries than asked for
            raise
        documents += _messages(answer)
    columns = ("id", "key", "properties", "value")
    rows = [
        [
            item["id"],
            item.get("key", ""),
            ", ".join(f"{name}={value}" for name, value in item["properties"].items()),
            item["value"][:SHOWN_CHARACTERS_MAX],
        ]
        for item in documents
    ]
    show.rows(args, documents, columns, rows)


def _messages(answer: admin_rest.Answer) -> Iterator[dict[str, Any]]:
    """Yields the messages of an entry."""
    from magnetar.wire._pb.PulsarApi_pb2 import SingleMessageMetadata

    headers = answer.headers
    entry = headers.get("x-pulsar-message-id", "")
    if "x-pulsar-num-batch-message" not in headers:
        properties = json.loads(headers.get("x-pulsar-property", "{}"))
        message = {"id": entry, "properties": properties, "value": _text(answer.body)}
        if "x-pulsar-partition-key" in headers:
            message["key"] = headers["x-pulsar-partition-key"]
        yield message
        return
    at = 0
    for index in range(int(headers["x-pulsar-num-batch-message"])):
        (size,) = struct.unpack_from(">I", answer.body, at)
        at += 4
        metadata = SingleMessageMetadata.FromString(answer.body[at : at + size])
        at += size
        payload = answer.body[at : at + metadata.payload_size]
        at += metadata.payload_size
        properties = {pair.key: pair.value for pair in metadata.properties}
        message = {"id": f"{entry}:{index}", "properties": properties, "value": _text(payload)}
        if metadata.HasField("partition_key"):
            message["key"] = metadata.partition_key
        yield message


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _skip(args: argparse.Namespace) -> None:
    if bool(args.all) == (args.number is not None):
        raise calls.WrongArgument("give a number of messages, or --all")
    path = calls.subscription_path(args)
    admin_rest.send(args, "POST", f"{path}/skip_all" if args.all else f"{path}/skip/{args.number}")
    calls.done(args, "skipped all messages" if args.all else f"skipped {args.number} messages")


def _expire(args: argparse.Namespace) -> None:
    admin_rest.send(args, "POST", f"{calls.subscription_path(args)}/expireMessages/{args.age}")
    calls.done(args, f"skipped messages older than {args.age} s")


def _reset(args: argparse.Namespace) -> None:
    start: Position = args.position
    path = calls.subscription_path(args)
    if start.kind == "latest":
        admin_rest.send(args, "POST", f"{path}/skip_all")
    elif start.kind == "id":
        ledger, entry, partition, batch = start.message_id
        document = {
            "ledgerId": ledger, "entryId": entry, "partitionIndex": partition, "batchIndex": batch
        }  # fmt: skip
        admin_rest.send(args, "POST", f"{path}/resetcursor", json.dumps(document).encode())
    else:
        admin_rest.send(args, "POST", f"{path}/resetcursor/{start.time_ms}")
    calls.done(args, f"reset {args.subscription}")


def _age(text: str) -> int:
    try:
        return duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_TOPIC = argument("topic")
_BOTH = (_TOPIC, argument("subscription"))
_POSITION = "earliest, latest, a message id, or a time"
VERBS = {
    "list": Verb("list the subscriptions of a topic", _list, [_TOPIC]),
    "create": Verb(
        "create a subscription",
        _create,
        [
            *_BOTH,
            argument(
                "--position", type=position, default=Position("latest"),
                help="earliest, latest (default) or a message id",
            ),
        ],
    ),
    "delete": Verb(
        "delete a subscription",
        _delete,
        [*_BOTH, argument("-f", "--force", action="store_true", help="disconnect consumers")],
    ),
    "stats": Verb("print the state and the consumers of a subscription", _stats, _BOTH),
    "backlog": Verb("print the messages that each subscription has to deliver", _backlog, [_TOPIC]),
    "peek": Verb(
        "print the next messages, and leave them",
        _peek,
        [
            *_BOTH,
            argument(
                "-n", "--count", type=int, default=PEEK_DEFAULT, metavar="N",
                help="entries, each a message or a batch (1)",
            ),
        ],
    ),
    "skip": Verb(
        "skip the next messages",
        _skip,
        [*_BOTH, argument("number", type=int, nargs="?"), argument("--all", action="store_true")],
    ),
    "expire": Verb(
        "skip messages that are older than an age",
        _expire,
        [*_BOTH, argument("age", type=_age, help="such as 90s, 5m, 3d")],
    ),
    "reset": Verb(
        "move a subscription to a position",
        _reset,
        [*_BOTH, argument("position", type=position, help=_POSITION)],
    ),
}  # fmt: skip
HELP = "list, create, delete and move subscriptions; peek at their messages"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `subscriptions`."""
    calls.add_parser(subparsers, "subscriptions", HELP, VERBS)


def run(args: argparse.Namespace) -> int:
    """Runs an action; returns the exit code."""
    return calls.run("subscriptions", VERBS, args)
