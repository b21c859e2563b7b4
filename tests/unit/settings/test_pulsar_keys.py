"""Every key of Pulsar's and BookKeeper's files has an effect, stops the start, or only tunes."""

import re
from pathlib import Path
from typing import Final

import pytest

from magnetar.cli.roles import ROLES
from magnetar.settings.field import settings_of
from magnetar.settings.load import load_standalone, pulsar_keys
from magnetar.settings.metadata_stores import STORE_KEYS
from magnetar.settings.pulsar_behavior import TYPES, Behavior, rows
from magnetar.settings.pulsar_switches import NOTICES, SWITCHES, refusal

ROWS: Final = list(rows())
TUNING: Final = Path(__file__).with_name("tuning_keys.txt")
SENSITIVE: Final = re.compile(
    "auth|sasl|tls|ssl|encrypt|delayed|transaction|dedup|quota|replicat|max|limit|acl|role|valid"
    "|polic|strict|allow",
    re.IGNORECASE,
)
"""Words in the names of keys that may concern security, limits or guarantees."""


def tuning_keys() -> dict[str, str]:
    """Returns the keys that only cause a warning, with the reasons of those that have one."""
    lines = [line for line in TUNING.read_text().splitlines() if line and line[0] != "#"]
    keys = [line.partition(": ")[::2] for line in lines]
    assert len(dict(keys)) == len(keys), "a key is listed twice"
    return dict(keys)


def keys_of_settings() -> set[str]:
    """Returns the keys that are settings of some role."""
    settings = [each for role in ROLES.values() for each in settings_of(role).values()]
    return {key for setting in settings for key in setting.foreign_keys}


def test_each_key_acts_or_stops_the_start_or_is_listed_as_tuning() -> None:
    tuning, acting = set(tuning_keys()), keys_of_settings()
    stopping = {*SWITCHES, *STORE_KEYS, *NOTICES}
    assert not tuning & stopping
    assert not tuning & acting
    listed = tuning | stopping | acting
    assert pulsar_keys() - listed == set(), "decide: a setting, a behavior, or tuning_keys.txt"
    assert (tuning | stopping) - pulsar_keys() == set()


def test_tuning_whose_name_concerns_more_has_its_reason() -> None:
    without = [key for key, reason in tuning_keys().items() if not reason and SENSITIVE.search(key)]
    assert not without


def values_that_stop(accepted: tuple[str, ...]) -> list[str]:
    if accepted == TYPES:
        return ["Exclusive", "Exclusive,Shared,Failover"]
    return ["another", "false" if "true" in accepted else "true"]


@pytest.mark.parametrize(("key", "accepted", "behavior"), ROWS, ids=[key for key, _, _ in ROWS])
def test_other_values_stop_the_start(
    key: str, accepted: tuple[str, ...], behavior: Behavior
) -> None:
    for value in values_that_stop(accepted):
        reason = refusal(key, value)
        assert reason == f"Magnetar does not support {behavior.feature}; {behavior.way_out}"
    assert refusal(key, "") is None
    assert refusal(key, []) is None


def test_a_file_with_the_accepted_values_loads(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    for index in range(max(len(accepted) for _, accepted, _ in ROWS)):
        values = {key: accepted[index % len(accepted)] for key, accepted, _ in ROWS}
        values["subscriptionTypesEnabled"] = ",".join(TYPES)
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        (warning,) = load_standalone({}, {}, config).warnings
        assert "maxTenants" in warning
