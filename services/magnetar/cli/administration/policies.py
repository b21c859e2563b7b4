"""The actions `policies`, `set-policy` and `remove-policy` of namespaces and topics."""

import argparse
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from magnetar.cli import admin_rest
from magnetar.cli.administration import calls, show
from magnetar.cli.administration.calls import Verb, argument

if TYPE_CHECKING:
    from magnetar.policies.policy import Level, Rest


def verbs(subject: str) -> dict[str, Verb]:
    """Returns the actions for `namespace` or `topic`."""
    target = argument(subject, help="TENANT/NAMESPACE" if subject == "namespace" else None)
    name = argument("policy", help="such as retention, messageTTL, backlogQuota")
    key = argument("--key", help="the entry of a policy with several, such as message_age")
    return {
        "policies": Verb("list the policies that are set here", _list, [target]),
        "set-policy": Verb(
            "set a policy: retention time=7d size=10G; messageTTL 1d; deduplication on",
            _set,
            [
                target,
                name,
                argument("value", nargs="+", help="value, FIELD=VALUE ..., or JSON"),
                key,
            ],
        ),
        "remove-policy": Verb("remove a policy", _remove, [target, name, key]),
    }


def _target(args: argparse.Namespace) -> "tuple[str, Level]":
    from magnetar.policies.policy import Level

    if "namespace" in args:
        return calls.namespace_path(args.namespace), Level.NAMESPACE
    return calls.topic_path(calls.topic_of(args.topic)), Level.TOPIC


def _list(args: argparse.Namespace) -> None:
    from magnetar.policies.registry import at, rest_of

    path, level = _target(args)
    values: dict[str, Any] = {}
    for policy in at(level):
        rest = rest_of(policy, level)
        if rest is None:
            continue
        try:
            body = admin_rest.get(args, f"{path}/{rest.path}")
        except admin_rest.AdminFailed as error:
            if error.status in (admin_rest.NOT_FOUND, 405, 501):
                continue  # not set, or not offered by this server
            raise
        value = json.loads(body) if body.strip() else None
        if value not in (None, {}, []) and value != policy.undefined:
            values[policy.manifest] = value
    show.fields(args, values, values)


def _set(args: argparse.Namespace) -> None:
    from magnetar.cli.administration.policy_values import parsed, policy_of

    path, level = _target(args)
    policy, rest = policy_of(args.policy, level)
    value = parsed(policy, rest, args.value)
    body = json.dumps(value).encode()
    admin_rest.send(args, rest.set_verb, f"{path}/{rest.setting_path}{_query(args, rest)}", body)
    calls.done(args, f"{policy.manifest} = {json.dumps(value)}")


def _remove(args: argparse.Namespace) -> None:
    from magnetar.cli.administration.policy_values import policy_of

    path, level = _target(args)
    policy, rest = policy_of(args.policy, level)
    admin_rest.send(args, rest.remove_verb, f"{path}/{rest.removing_path}{_query(args, rest)}")
    calls.done(args, f"{policy.manifest} is removed")


def _query(args: argparse.Namespace, rest: "Rest") -> str:
    if args.key is None:
        return ""
    if not rest.keyed_by:
        raise calls.WrongArgument(f"{args.policy} has one value: leave --key out")
    return f"?{rest.keyed_by}={quote(args.key)}"
