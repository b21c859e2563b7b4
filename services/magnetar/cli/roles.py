"""Flags, settings and checks of the commands that run a process.

Each role has a settings class. Settings that users often type have a flag. The others come from the
environment or from a file, which all processes of a cluster may share.
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args, get_origin

from magnetar.cli import run_loop
from magnetar.core.log import get_logger
from magnetar.observe.logging import configure
from magnetar.observe.role_log import AS_IT_IS
from magnetar.settings.bookie import BookieProcessSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import Setting, SettingsError, settings_of
from magnetar.settings.load import load
from magnetar.settings.member import AutorecoveryProcessSettings
from magnetar.settings.standalone import StandaloneSettings

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
_TLS_FLAGS: Final = ("port_tls", "http_port_tls", "tls_cert_file", "tls_key_file")
FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "standalone": frozenset(
        (
            *("data_dir", "host", "port", "http_port", "advertised_host", "wipe", "log_format"),
            *_TLS_FLAGS,
        )
    ),
    "broker": frozenset(
        (*_MEMBER_FLAGS, *_TLS_FLAGS, "port", "ensemble_size", "write_quorum", "ack_quorum")
    ),
    "bookie": frozenset((*_MEMBER_FLAGS, "port", "data_dir", "bookie_id", "rack", "autorecovery")),
    "autorecovery": frozenset(_MEMBER_FLAGS),
}

S = TypeVar("S", BrokerProcessSettings, BookieProcessSettings, AutorecoveryProcessSettings)


class Refused(Exception):
    """The process cannot start. The reason has been printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def add_flags(parser: argparse.ArgumentParser, role: str) -> None:
    """Adds the role's flags. Flags that are not given do not override other sources."""
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
    """Loads the role's settings and configures the log by them; raises Refused if one is wrong."""
    arguments = vars(args)
    flags = {name: arguments[name] for name in FLAGS[role] if name in arguments}
    others = [
        item for other in ROLES.values() if other is not cls for item in settings_of(other).values()
    ]
    try:
        loaded = load(cls, flags, os.environ, arguments.get("config"), others)
    except SettingsError as error:
        raise Refused(run_loop.refuse(str(error), code=2)) from error
    log_lines, security = loaded.settings.log, getattr(loaded.settings, "security", None)
    role_log = AS_IT_IS if security is None else security.role_log
    configure(log_lines.log_format, log_lines.log_level, role_log=role_log)
    for warning in loaded.warnings:
        log.warning(warning)
    for note in loaded.notes:
        log.info(note)
    return loaded.settings


def check_ports(host: str, ports: Mapping[str, int | None]) -> None:
    """Raises Refused if a port is in use. `ports` are by the name of the setting."""
    flags = [(port, "--" + name.replace("_", "-")) for name, port in ports.items()]
    problems = run_loop.ports_in_use(host, flags)
    if problems:
        raise Refused(run_loop.refuse("; ".join(problems)))
