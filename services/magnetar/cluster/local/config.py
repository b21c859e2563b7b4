"""The file of settings that `magnetar cluster up --config` gives to all members of a new cluster.

Every member reads the file itself. Settings that the cluster passes to each member as flags have no
effect in the file, and `overridden` names them. The cluster's name is the exception: the cluster
takes it from the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.errors import PreconditionFailed
from magnetar.settings.bookie import BookieProcessSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import SettingsError, settings_of
from magnetar.settings.load import file_values
from magnetar.settings.member import AutorecoveryProcessSettings

NAME_DEFAULT: Final = "magnetar"

_NAME: Final = "cluster_name"
_MEMBER_FLAGS: Final = (
    "metadata_url",
    "host",
    "port",
    "http_port",
    "bookie_id",
    "data_dir",
    "log_format",
)
"""Settings that the cluster passes to each member as flags (`members.command`)."""
_ROLES: Final = (BrokerProcessSettings, BookieProcessSettings, AutorecoveryProcessSettings)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The parts of the file that a new cluster uses."""

    name: str
    settings: Mapping[str, str]
    """The values by the file's keys, in the format of `key=value` lines."""
    overridden: tuple[str, ...]
    """The origins of keys without effect, for people."""


def read_config(path: Path) -> ClusterConfig:
    """Reads the file; raises PreconditionFailed if it is unreadable or names two clusters."""
    try:
        values = file_values(path)
    except SettingsError as error:
        raise PreconditionFailed(str(error)) from error
    setting_names = _setting_names()
    names = {
        str(value): origin
        for key, (value, origin) in values.items()
        if setting_names.get(key) == _NAME and value != ""
    }
    if len(names) > 1:
        raise PreconditionFailed(f"{' and '.join(names.values())} name different clusters")
    return ClusterConfig(
        next(iter(names), NAME_DEFAULT),
        {key: format_value(value) for key, (value, _) in values.items()},
        tuple(
            origin
            for key, (value, origin) in values.items()
            if setting_names.get(key) in _MEMBER_FLAGS and value != ""
        ),
    )


def format_value(value: object) -> str:
    """Formats a value for a `key=value` line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _setting_names() -> dict[str, str]:
    """Returns the setting's name by each of its keys, ours and Pulsar's."""
    return {
        key: setting.name
        for role in _ROLES
        for setting in settings_of(role).values()
        if setting.name in (_NAME, *_MEMBER_FLAGS)
        for key in (setting.name, *setting.foreign_keys)
    }
