"""Which settings can change while a broker runs, and the settings that follow from a change.

Pure. A setting is in DYNAMIC if every part of the broker that uses it reads the new value: policies
recompute their defaults, shared limiters are set again, or the value is read with each use. All
others hold from the start of a process on, and a change of them is refused. A value set at run time
precedes flags, environment and file.

`superUserRoles` is not here: a role that may change it could turn every role into a super user.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from magnetar.settings.balance import BalanceSettings
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.broker_limits import BrokerLimitSettings
from magnetar.settings.convert import converted, within
from magnetar.settings.field import Setting, SettingsError, compose, settings_of, values_of
from magnetar.settings.policy_defaults import PolicyDefaults

S = TypeVar("S", bound=BrokerSettings)

_BALANCE: Final = settings_of(BalanceSettings).keys() - {
    "load_balancer",
    "load_report_change_percent",
    "load_report_interval_min_ms",
    "load_report_interval_max_minutes",
    "load_report_bundles_max",
}
"""Those of planning; a broker reads those of reports when it starts."""

DYNAMIC: Final = frozenset(
    {
        *settings_of(PolicyDefaults),
        *settings_of(BrokerLimitSettings),
        *_BALANCE,
        "auto_subscription_creation",
        "auto_topic_creation",
        "auto_topic_creation_type",
        "connections_max",
        "connections_per_ip_max",
        "consumers_per_subscription_max",
        "consumers_per_topic_max",
        "delete_inactive_topics",
        "delete_inactive_topics_mode",
        "force_delete_namespace",
        "force_delete_tenant",
        "partitions_max",
        "producers_per_topic_max",
        "retention_minutes",
        "retention_size_mb",
        "subscriptions_per_topic_max",
        "unacked_per_consumer_max",
        "unacked_per_subscription_max",
    }
)


def dynamic_settings(role: type[BrokerSettings]) -> dict[str, Setting]:
    """Returns the settings of a role that can change, by Pulsar's key or else by our name."""
    return {
        setting.pulsar_key or setting.name: setting
        for setting in settings_of(role).values()
        if setting.name in DYNAMIC
    }


def effective(settings: S, values: Mapping[str, str]) -> S:
    """Returns the settings with the values, given by key; raises SettingsError, with the key.

    Keys that cannot change are ignored: a broker of another version may have set them.
    """
    known = dynamic_settings(type(settings))
    changed: dict[str, object] = {}
    for key, text in values.items():
        if key in known:
            try:
                changed[known[key].name] = within(known[key], converted(known[key], text))
            except ValueError as error:
                raise SettingsError(f"{key}: {text!r} {error}") from None
    return compose(type(settings), **(values_of(settings) | changed))


def effective_parts(settings: S, values: Mapping[str, str]) -> tuple[S, dict[str, str]]:
    """Returns the settings with those of the values that are valid together, and the others.

    The second result has the reason for each value that was left out. Only a broker of another
    version, with other ranges, can have set such a value.
    """
    try:
        return effective(settings, values), {}  # some settings are valid only together
    except SettingsError:
        refused: dict[str, str] = {}
    kept: dict[str, str] = {}
    result = settings
    for key, text in sorted(values.items()):
        try:
            result = effective(settings, kept | {key: text})
        except SettingsError as error:
            refused[key] = str(error)
        else:
            kept[key] = text
    return result, refused
