"""`magnetar topics`: list, create, delete and inspect topics; their partitions and policies."""

import argparse
from typing import Any

from magnetar.cli import admin_rest
from magnetar.cli.administration import calls, policies, show
from magnetar.cli.administration.calls import Verb, argument


def _list(args: argparse.Namespace) -> None:
    namespace = calls.namespace_of(args.namespace)
    domain = "non-persistent" if args.non_persistent else "persistent"
    listed: list[str] = admin_rest.get_json(args, f"/admin/v2/{domain}/{namespace}")
    parents: list[str] = admin_rest.get_json(args, f"/admin/v2/{domain}/{namespace}/partitioned")
    if not args.partitions:
        partitioned = set(parents)
        listed = [name for name in listed if name.rpartition("-partition-")[0] not in partitioned]
        listed = sorted({*listed, *parents})
    if not args.system:
        listed = [name for name in listed if not name.rpartition("/")[2].startswith("__")]
    show.names(args, listed)


def _create(args: argparse.Namespace) -> None:
    topic = calls.topic_of(args.topic)
    path = calls.topic_path(topic)
    if args.partitions:
        admin_rest.send(args, "PUT", f"{path}/partitions", str(args.partitions).encode())
    else:
        admin_rest.send(args, "PUT", path)
    calls.done(args, f"created {topic}")


def _delete(args: argparse.Namespace) -> None:
    topic = calls.topic_of(args.topic)
    path = calls.topic_path(topic)
    if calls.partitions_of(args, topic):
        path += "/partitions"
    admin_rest.send(args, "DELETE", path + ("?force=true" if args.force else ""))
    calls.done(args, f"deleted {topic}")


def _partitions(args: argparse.Namespace) -> None:
    topic = calls.topic_of(args.topic)
    if args.number is None:
        count = calls.partitions_of(args, topic)
        show.fields(args, {"partitions": count}, {"partitions": count})
        return
    path = f"{calls.topic_path(topic)}/partitions"
    admin_rest.send(args, "POST", path, str(args.number).encode())
    calls.done(args, f"{topic} has {args.number} partitions")


def _stats(args: argparse.Namespace) -> None:
    document = calls.stats_of(args, calls.topic_of(args.topic))
    show.fields(args, document, _shown(document))
    subscriptions = document.get("subscriptions", {})
    if subscriptions and not args.json:
        print()
        for line in show.table(SUBSCRIPTION_COLUMNS, subscription_rows(subscriptions)):
            print(line)


def _shown(document: dict[str, Any]) -> dict[str, object]:
    shown: dict[str, object] = {}
    if "metadata" in document:
        shown["partitions"] = document["metadata"]["partitions"]
    return shown | {
        "in": f"{document['msgRateIn']:.1f} msg/s, {show.size(document['msgThroughputIn'])}/s",
        "out": f"{document['msgRateOut']:.1f} msg/s, {show.size(document['msgThroughputOut'])}/s",
        "stored": show.size(document["storageSize"]),
        "backlog": show.size(document["backlogSize"]),
        "average message": show.size(document["averageMsgSize"]),
        "producers": len(document.get("publishers", [])),
        "subscriptions": len(document.get("subscriptions", {})),
    }


SUBSCRIPTION_COLUMNS = (
    "subscription", "type", "consumers", "backlog", "unacked", "delayed", "msg/s", "redelivered/s"
)  # fmt: skip


def subscription_rows(subscriptions: dict[str, Any]) -> list[list[object]]:
    """Returns the rows of a table of subscriptions."""
    return [
        [
            name,
            item.get("type", ""),
            len(item.get("consumers", [])),
            item.get("msgBacklog", 0),
            item.get("unackedMessages", 0),
            item.get("msgDelayed", 0),
            float(item.get("msgRateOut", 0.0)),
            float(item.get("msgRateRedeliver", 0.0)),
        ]
        for name, item in sorted(subscriptions.items())
    ]


def _unload(args: argparse.Namespace) -> None:
    topic = calls.topic_of(args.topic)
    admin_rest.send(args, "PUT", f"{calls.topic_path(topic)}/unload")
    calls.done(args, f"unloaded {topic}")


_TOPIC = argument("topic")
VERBS = {
    "list": Verb(
        "list the topics of a namespace",
        _list,
        [
            argument("namespace", help="TENANT/NAMESPACE"),
            argument("--partitions", action="store_true", help="list partitions, not their topics"),
            argument("--non-persistent", action="store_true"),
            argument("--system", action="store_true", help="also topics that start with __"),
        ],
    ),
    "create": Verb(
        "create a topic",
        _create,
        [_TOPIC, argument("-p", "--partitions", type=int, default=0, metavar="N")],
    ),
    "delete": Verb(
        "delete a topic",
        _delete,
        [_TOPIC, argument("-f", "--force", action="store_true", help="disconnect clients")],
    ),
    "stats": Verb("print rates, sizes and subscriptions", _stats, [_TOPIC]),
    "partitions": Verb(
        "print the number of partitions, or raise it",
        _partitions,
        [_TOPIC, argument("number", nargs="?", type=int)],
    ),
    "unload": Verb("close a topic on its broker; it is opened again on demand", _unload, [_TOPIC]),
    **policies.verbs("topic"),
}
HELP = "list, create, delete and inspect topics; read and set their policies"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `topics`."""
    calls.add_parser(subparsers, "topics", HELP, VERBS)


def run(args: argparse.Namespace) -> int:
    """Runs an action; returns the exit code."""
    return calls.run("topics", VERBS, args)
