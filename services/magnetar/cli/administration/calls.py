"""What the commands of administration share: actions, paths, errors with remedies."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from magnetar.cli import admin_rest

if TYPE_CHECKING:
    from magnetar.core.names import TopicName

FAILED: Final = 1
USAGE: Final = 2
_REMEDIES: Final = {
    0: "check --admin-url, or MAGNETAR_ADMIN_URL",
    401: "authenticate: --token-file, --oauth2-file, --user or --cert-file, or their variables",
    403: "the role lacks this right",
    404: "list what exists with the action `list`",
}

Action = Callable[[argparse.Namespace], None]


class Argument(NamedTuple):
    """An argument or option of an action."""

    names: tuple[str, ...]
    options: dict[str, Any]


def argument(*names: str, **options: Any) -> Argument:
    """Describes an argument as `add_argument` takes it."""
    return Argument(names, options)


class Verb(NamedTuple):
    """An action of a command."""

    help: str
    run: Action
    arguments: Sequence[Argument] = ()


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
    command: str,
    text: str,
    verbs: dict[str, Verb],
) -> None:
    """Adds a command and its actions."""
    parser = subparsers.add_parser(command, help=text, description=f"{text[0].upper()}{text[1:]}.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, verb in verbs.items():
        action = actions.add_parser(name, help=verb.help)
        for item in verb.arguments:
            action.add_argument(*item.names, **item.options)
        admin_rest.add_flags(action)
        action.add_argument("--json", action="store_true", help="print one JSON document")


def run(command: str, verbs: dict[str, Verb], args: argparse.Namespace) -> int:
    """Runs an action; returns the exit code: 0 done, 1 refused or not reached, 2 wrong argument."""
    from magnetar.core.errors import InvalidTopicName, MagnetarError

    try:
        verbs[args.action].run(args)
    except (InvalidTopicName, WrongArgument) as error:
        return _failed(command, args, str(error), USAGE)
    except admin_rest.AdminFailed as error:
        remedy = _REMEDIES.get(error.status, "")
        return _failed(command, args, f"{error}. {remedy}" if remedy else str(error), FAILED)
    except MagnetarError as error:
        return _failed(command, args, str(error), FAILED)
    return 0


def _failed(command: str, args: argparse.Namespace, text: str, code: int) -> int:
    print(f"magnetar {command} {args.action}: {text}", file=sys.stderr)
    return code


class WrongArgument(admin_rest.AdminFailed):
    """An argument that cannot be honored."""


def topic_of(text: str) -> "TopicName":
    """Returns the full name of a topic; raises InvalidTopicName."""
    from magnetar.core.names import parse_topic

    return parse_topic(text)


def topic_path(topic: "TopicName") -> str:
    """Returns the path of a topic in the admin REST."""
    return f"/admin/v2/{topic.domain}/{topic.tenant}/{topic.namespace_local}/{topic.encoded_local}"


def namespace_path(text: str) -> str:
    """Returns the path of a namespace in the admin REST; raises WrongArgument."""
    return f"/admin/v2/namespaces/{namespace_of(text)}"


def namespace_of(text: str) -> str:
    """Returns `TENANT/NAMESPACE`, quoted for a path; raises WrongArgument."""
    tenant, slash, namespace = text.partition("/")
    if not slash or not tenant or not namespace or "/" in namespace:
        raise WrongArgument(f"{text!r} is not TENANT/NAMESPACE")
    return f"{quote(tenant, safe='')}/{quote(namespace, safe='')}"


def subscription_path(args: argparse.Namespace) -> str:
    """Returns the path of the subscription of the arguments."""
    return f"{topic_path(topic_of(args.topic))}/subscription/{quote(args.subscription, safe='')}"


def partitions_of(args: argparse.Namespace, topic: "TopicName") -> int:
    """Returns the number of partitions of a topic; 0 for a topic without."""
    document = admin_rest.get_json(args, f"{topic_path(topic)}/partitions")
    return int(document["partitions"])


def stats_of(args: argparse.Namespace, topic: "TopicName") -> dict[str, Any]:
    """Returns the statistics of a topic, those of its partitions included."""
    kind = "partitioned-stats" if partitions_of(args, topic) else "stats"
    document: dict[str, Any] = admin_rest.get_json(args, f"{topic_path(topic)}/{kind}")
    return document


def done(args: argparse.Namespace, text: str) -> None:
    """Prints what was done; with --json an empty object, since there is no document."""
    print("{}" if args.json else text)
