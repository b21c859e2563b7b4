"""What the commands that run a process have in common: their flags, their settings, their checks.

Each role has a settings class; a flag is made for those of its settings that people type. Others
come from the environment or a file, which all processes of a cluster may share.
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args, get_origin

from magnetar.broker.setting import Setting, SettingsError, settings_of
from magnetar.broker.settings import StandaloneSettings
from magnetar.broker.settings_load import load
from magnetar.cli import run_loop
from magnetar.cluster.bookie_settings import BookieProcessSettings
from magnetar.cluster.settings import (
    AutorecoveryProcessSettings,
    BrokerProcessSettings,
)
from magnetar.core.log import get_logger
from magnetar.observe.logging import configure

log = get_logger("magnetar.cli")

ROLES: Final[Mapping[str, type]] = {
    "standalone": StandaloneSettings,
    "broker": BrokerProcessSettings,
    "bookie": BookieProcessSettings,
    "autorecovery": AutorecoveryProcessSettings,
}

_MEMBER_FLAGS: Final = (
    "metadata_url",
    "cluster_name",
    "host",
    "advertised_host",
    "http_port",
    "log_format",
    "log_level",
)
FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "standalone": frozenset(
        ("data_dir", "host", "port", "http_port", "advertised_host", "wipe", "log_format")
    ),
    "broker": frozenset((*_MEMBER_FLAGS, "port", "ensemble_size", "write_quorum", "ack_quorum")),
    "bookie": frozenset((*_MEMBER_FLAGS, "port", "data_dir", "bookie_id", "rack", "autorecovery")),
    "autorecovery": frozenset(_MEMBER_FLAGS),
}

S = TypeVar("S", BrokerProcessSettings, BookieProcessSettings, AutorecoveryProcessSettings)


class Refused(Exception):
    """The process cannot start; why was printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def add_flags(parser: argparse.ArgumentParser, role: str) -> None:
    """The role's flags. Those that are not typed leave no trace, so that others may set them."""
    for item in settings_of(ROLES[role]).values():
        if item.name in FLAGS[role]:
            _add_flag(parser, item)
    parser.add_argument(
        "--config",
        type=Path,
        default=argparse.SUPPRESS,
        help="file of settings: broker.conf or bookkeeper.conf lines, or .toml",
    )
    parser.epilog = f"Every other setting: `magnetar config list --role {role}`."


def _add_flag(parser: argparse.ArgumentParser, item: Setting) -> None:
    text = item.help.rstrip(".").replace("%", "%%")
    if item.default not in (None, ""):
        text += f" ({item.default})"
    if item.annotation is bool:
        parser.add_argument(
            item.flag,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=text,
        )
        return
    choices = get_args(item.annotation) if get_origin(item.annotation) is Literal else None
    kind = item.annotation if item.annotation in (int, float, Path) else str
    parser.add_argument(
        item.flag,
        type=kind,
        choices=choices,
        default=argparse.SUPPRESS,
        help=text,
    )


def settings(role: str, cls: type[S], args: argparse.Namespace) -> S:
    """The role's settings, with the log set up by them; raises Refused."""
    given = vars(args)
    flags = {name: given[name] for name in FLAGS[role] if name in given}
    others = [
        item for other in ROLES.values() if other is not cls for item in settings_of(other).values()
    ]
    try:
        loaded = load(cls, flags, os.environ, given.get("config"), others)
    except SettingsError as error:
        raise Refused(run_loop.refuse(str(error), code=2)) from error
    configure(loaded.settings.log_format, loaded.settings.log_level)
    for warning in loaded.warnings:
        log.warning(warning)
    for note in loaded.notes:
        log.info(note)
    return loaded.settings


def check_ports(host: str, ports: Mapping[str, int]) -> None:
    """Raises Refused where one of the ports, by the setting's name, is taken."""
    flags = [(port, "--" + name.replace("_", "-")) for name, port in ports.items()]
    problems = run_loop.ports_in_use(host, flags)
    if problems:
        raise Refused(run_loop.refuse("; ".join(problems)))
