"""The file of settings that `magnetar cluster up --config` gives to all members of a new cluster.

The members read it themselves, but for what the cluster sets by a flag of each member: the name of
the cluster is taken from the file, and of all others `overridden` tells that they have no effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.broker.setting import SettingsError, settings_of
from magnetar.broker.settings_load import file_values
from magnetar.cluster.bookie_settings import BookieProcessSettings
from magnetar.cluster.settings import AutorecoveryProcessSettings, BrokerProcessSettings
from magnetar.core.errors import PreconditionFailed

NAME_DEFAULT: Final = "magnetar"

_NAME: Final = "cluster_name"
_OF_EACH: Final = (
    "metadata_url",
    "host",
    "port",
    "http_port",
    "bookie_id",
    "data_dir",
    "log_format",
)
"""Settings that the cluster gives to each member by a flag (`members.command`)."""
_ROLES: Final = (BrokerProcessSettings, BookieProcessSettings, AutorecoveryProcessSettings)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What a new cluster takes from the file."""

    name: str
    settings: Mapping[str, str]
    """By the file's keys, as lines of `key=value` have them."""
    overridden: tuple[str, ...]
    """The places of keys without effect here, for people."""


def read_config(path: Path) -> ClusterConfig:
    """Raises PreconditionFailed where the file cannot be read, or names no valid cluster."""
    try:
        values = file_values(path)
    except SettingsError as error:
        raise PreconditionFailed(str(error)) from error
    meanings = _meanings()
    names = {
        str(value): origin
        for key, (value, origin) in values.items()
        if meanings.get(key) == _NAME and value != ""
    }
    if len(names) > 1:
        raise PreconditionFailed(f"{' and '.join(names.values())} name different clusters")
    return ClusterConfig(
        next(iter(names), NAME_DEFAULT),
        {key: written(value) for key, (value, _) in values.items()},
        tuple(
            origin
            for key, (value, origin) in values.items()
            if meanings.get(key) in _OF_EACH and value != ""
        ),
    )


def written(value: object) -> str:
    """A value as a line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meanings() -> dict[str, str]:
    """Our names and Pulsar's of the settings that concern the cluster, each with ours."""
    return {
        key: setting.name
        for role in _ROLES
        for setting in settings_of(role).values()
        if setting.name in (_NAME, *_OF_EACH)
        for key in (setting.name, *setting.foreign_keys)
    }
