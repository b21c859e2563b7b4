"""`magnetar config`: every setting with its default, range, Pulsar's key and meaning.

`list` is one line each, `explain KEY` everything of one (by our name or Pulsar's), `markdown` is
the source of `docs/configuration.md`.
"""

import argparse
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import get_args, get_origin

from magnetar.broker.setting import UNLIMITED, Setting, SettingsError, settings_of
from magnetar.broker.settings import StandaloneSettings
from magnetar.broker.settings_load import pulsar_keys, suggestion

FLAGS = {"data_dir", "host", "port", "http_port", "advertised_host", "wipe", "log_format"}

_INTRO = """\
# Configuration

Made by `make docs` from `services/magnetar/broker/settings.py`; do not edit.

A setting comes from, first one wins:

1. a flag of `magnetar standalone`, where it has one;
2. the environment: `MAGNETAR_` and its name in capitals, or `PULSAR_PREFIX_` and Pulsar's key;
3. the file given with `--config`: lines `key=value` as in Pulsar's `broker.conf`, or TOML where
   the name ends in `.toml`; keys by our names or Pulsar's; an empty value means "not set";
4. its default.

A key of Pulsar's that has no effect here is warned of; an unknown one is an error. Numbers have the
unit of Pulsar's key. `magnetar config explain KEY` says the same of one setting.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `config`."""
    parser = subparsers.add_parser("config", help="list and explain the settings")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="all settings, one line each")
    explain = actions.add_parser("explain", help="one setting")
    explain.add_argument("key", help="its name, or Pulsar's key")
    actions.add_parser("markdown", help="all settings as docs/configuration.md")


def run(args: argparse.Namespace) -> int:
    """Prints what was asked for."""
    settings = settings_of(StandaloneSettings)
    if args.action == "list":
        width = max(map(len, settings))
        for item in settings.values():
            print(f"{item.name:<{width}}  {value_text(item):<14} {item.help}")
        return 0
    if args.action == "markdown":
        print(markdown(settings.values()), end="")
        return 0
    try:
        print(explained(args.key))
    except SettingsError as error:
        print(f"magnetar: {error}", file=sys.stderr)
        return 1
    return 0


def explained(key: str) -> str:
    """Everything about one key; raises SettingsError for one that nobody knows."""
    settings = settings_of(StandaloneSettings)
    by_pulsar_key = {item.pulsar_key: item for item in settings.values() if item.pulsar_key}
    item = settings.get(key) or by_pulsar_key.get(key)
    if item is None:
        if key in pulsar_keys():
            return f"{key}: a key of Pulsar's that has no effect here."
        near = suggestion(key, [*settings, *by_pulsar_key, *pulsar_keys()])
        raise SettingsError(f"unknown setting {key}{near}")
    rows = [
        ("default", value_text(item)),
        ("allowed", allowed_text(item)),
        ("Pulsar's key", item.pulsar_key or "none"),
        ("environment", item.env),
        ("flag", item.flag if item.name in FLAGS else "none"),
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


def markdown(settings: Iterable[Setting]) -> str:
    """The whole page."""
    parts = [_INTRO.rstrip()]
    # The standalone's own settings are declared last, and read first.
    ordered = sorted(settings, key=lambda item: item.group != "Standalone")
    for group, items in groupby(ordered, key=lambda item: item.group):
        parts.append(f"\n## {group}\n\n| Setting | Default | Allowed | Pulsar's key | Meaning |")
        parts.append("|---|---|---|---|---|")
        parts += [
            f"| `{item.name}` | {value_text(item)} | {allowed_text(item)} "
            f"| {f'`{item.pulsar_key}`' if item.pulsar_key else ''} | {item.help} |"
            for item in items
        ]
    return "\n".join(parts) + "\n"
