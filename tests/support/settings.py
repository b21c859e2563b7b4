"""Settings of a role with other values, by the names of settings."""

from typing import TypeVar

from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose, values_of

S = TypeVar("S", bound=BrokerSettings)


def changed(settings: S, **values: object) -> S:
    """Returns a copy of the settings with these values; raises SettingsError for other names."""
    return compose(type(settings), **(values_of(settings) | values))
