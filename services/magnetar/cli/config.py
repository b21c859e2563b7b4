"""`magnetar config`: every setting with its default, range, Pulsar's key and meaning.

`list` is one line each, `explain KEY` everything of one (by our name or Pulsar's), `markdown` is
the source of `docs/configuration.md`, `policies` that of `docs/policies.md`. Roles share many
settings: what differs in one, its default or its meaning, is shown for each.
"""

import argparse
import sys
from itertools import groupby
from pathlib import Path
from typing import get_args, get_origin

from magnetar.broker.pulsar_switches import SWITCHES
from magnetar.broker.setting import UNLIMITED, Setting, SettingsError, settings_of
from magnetar.broker.settings_load import pulsar_keys, suggestion
from magnetar.cli.policies_page import policies_page
from magnetar.cli.roles import FLAGS, ROLES
from magnetar.cluster import settings as groups
from magnetar.cluster.bookie_settings import BOOKIE, STORAGE

_INTRO = """\
# Configuration

Made by `make docs` from the settings' descriptions in the code; do not edit.

A setting comes from, first one wins:

1. a flag of the command (`magnetar standalone`, `broker`, `bookie`, `autorecovery`), where it has
   one;
2. the environment: `MAGNETAR_` and its name in capitals, or `PULSAR_PREFIX_` and Pulsar's key;
3. the file given with `--config`: lines `key=value` as in Pulsar's `broker.conf` and BookKeeper's
   `bookkeeper.conf`, or TOML where the name ends in `.toml`; keys by our names or Pulsar's; an
   empty value means "not set";
4. its default.

A key of Pulsar's that has no effect here is warned of. If its value asks for a promise that nothing
keeps (security, deduplication, transactions, caps), the process does not start. A key of another
role is passed over, an unknown one is an error. Numbers have the unit of Pulsar's key. `magnetar
config explain KEY` says the same of one setting. Standalone and broker share all groups that name
no role.
"""

_FIRST = ("Standalone", groups.CLUSTER, groups.BROKER, BOOKIE, STORAGE, groups.AUTORECOVERY)
"""Groups that are read first; the others follow as they are declared."""


def described() -> list[tuple[Setting, tuple[str, ...]]]:
    """Every setting once, with the roles that have it just so."""
    found: dict[tuple[object, ...], tuple[Setting, list[str]]] = {}
    for role, cls in ROLES.items():
        for item in settings_of(cls).values():
            key = (item.name, item.group, str(item.default), item.help)
            found.setdefault(key, (item, []))[1].append(role)
    return [(item, tuple(roles)) for item, roles in found.values()]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `config`."""
    parser = subparsers.add_parser("config", help="list and explain the settings")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all settings, one line each")
    listing.add_argument("--role", choices=sorted(ROLES), help="those of this role only")
    explain = actions.add_parser("explain", help="one setting")
    explain.add_argument("key", help="its name, or Pulsar's key")
    actions.add_parser("markdown", help="all settings as docs/configuration.md")
    actions.add_parser("policies", help="all policies as docs/policies.md")


def run(args: argparse.Namespace) -> int:
    """Prints what was asked for."""
    if args.action == "list":
        print(listed(args.role))
        return 0
    if args.action == "markdown":
        print(markdown(), end="")
        return 0
    if args.action == "policies":
        print(policies_page(), end="")
        return 0
    try:
        print(explained(args.key))
    except SettingsError as error:
        print(f"magnetar: {error}", file=sys.stderr)
        return 1
    return 0


def listed(role: str | None) -> str:
    """One line for each setting."""
    items = [item for item, roles in described() if role is None or role in roles]
    width = max(len(item.name) for item in items)
    return "\n".join(f"{i.name:<{width}}  {value_text(i):<14} {i.help}" for i in items)


def explained(key: str) -> str:
    """Everything about one key; raises SettingsError for one that nobody knows."""
    everything = described()
    found = [(i, roles) for i, roles in everything if key == i.name or key in i.foreign_keys]
    if not found:
        if key in pulsar_keys():
            if (switch := SWITCHES.get(key)) is not None:
                return (
                    f"{key}: Magnetar does not support {switch.feature}: a value that asks for it "
                    f"stops the start; {switch.way_out}."
                )
            return f"{key}: a key of Pulsar's that has no effect here."
        known = [word for i, _ in everything for word in (i.name, *i.foreign_keys)]
        near = suggestion(key, [*known, *pulsar_keys()])
        raise SettingsError(f"unknown setting {key}{near}")
    return "\n\n".join(_explained(item, roles) for item, roles in found)


def _explained(item: Setting, roles: tuple[str, ...]) -> str:
    with_flag = [role for role in roles if item.name in FLAGS[role]]
    rows = [
        ("default", value_text(item)),
        ("allowed", allowed_text(item)),
        ("Pulsar's key", ", ".join(item.foreign_keys) or "none"),
        ("environment", item.env),
        ("flag", f"{item.flag} of {', '.join(with_flag)}" if with_flag else "none"),
        ("roles", ", ".join(roles)),
    ]
    return "\n".join([item.name, f"  {item.help}", *(f"  {a:<13} {b}" for a, b in rows)])


def value_text(item: Setting) -> str:
    """The default as it would be written in a file."""
    value = item.default
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == () or value == "":
        return "not set"
    return str(value)


def allowed_text(item: Setting) -> str:
    """Choices, range or kind of value."""
    if names := _choices(item.annotation):
        kind = "any of " if get_origin(item.annotation) is tuple else ""
        return kind + ", ".join(names)
    if item.annotation is bool:
        return "true, false"
    if item.range_text:
        unlimited = item.high in (UNLIMITED, UNLIMITED >> 20)
        text = f"at least {item.low:g}" if unlimited else item.range_text
        return f"{text} {item.unit}".rstrip()
    return "a path" if item.annotation is Path else "text"


def _choices(annotation: object) -> tuple[str, ...]:
    if get_origin(annotation) is tuple:
        return _choices(get_args(annotation)[0])
    return tuple(value for value in get_args(annotation) if isinstance(value, str))


def markdown() -> str:
    """The whole page."""
    parts = [_INTRO.rstrip()]
    items = [item for item, _ in described()]
    declared = list(dict.fromkeys(item.group for item in items))
    order = [*_FIRST, *(group for group in declared if group not in _FIRST)]
    ordered = sorted(items, key=lambda item: order.index(item.group))
    for group, members in groupby(ordered, key=lambda item: item.group):
        parts.append(f"\n## {group}\n\n| Setting | Default | Allowed | Pulsar's key | Meaning |")
        parts.append("|---|---|---|---|---|")
        parts += [
            f"| `{item.name}` | {value_text(item)} | {allowed_text(item)} "
            f"| {', '.join(f'`{key}`' for key in item.foreign_keys)} | {item.help} |"
            for item in members
        ]
    return "\n".join(parts) + "\n"
