"""The groups of settings: independent of each other, and one flat view of them per role."""

from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.roles import ROLES
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.deduplication import DeduplicationSettings
from magnetar.settings.field import SettingsError, compose, settings_of, values_of
from magnetar.settings.standalone import StandaloneSettings


def groups_of(cls: type) -> list[type]:
    """Returns the classes of the fields that declare no setting themselves."""
    return [type(item.default) for item in fields(cls) if "setting" not in item.metadata]


def declarations(cls: type) -> Iterator[Field[Any]]:
    """Yields every field that declares a setting of the role."""
    for item in fields(cls):
        if "setting" in item.metadata:
            yield item
    for group in groups_of(cls):
        yield from fields(group)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_no_group_inherits_from_another(role: str) -> None:
    members = groups_of(ROLES[role])
    assert len(members) >= 7
    assert all(group.__bases__ == (object,) for group in members)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_the_name_of_a_setting_is_unique_in_its_role(role: str) -> None:
    names = [item.name for item in declarations(ROLES[role])]
    assert len(names) == len(set(names))
    assert set(names) == set(settings_of(ROLES[role]))


@given(st.data())
def test_settings_are_composed_of_their_values(data: st.DataObject) -> None:
    cls: type[Any] = data.draw(st.sampled_from(sorted(ROLES.values(), key=str)))
    defaults = compose(cls)
    assert defaults == cls()
    assert values_of(defaults) == {name: item.default for name, item in settings_of(cls).items()}
    chosen = data.draw(st.sets(st.sampled_from(list(settings_of(cls)))))
    values = {name: value for name, value in values_of(defaults).items() if name in chosen}
    assert compose(cls, **values) == defaults


def test_a_value_reaches_its_group() -> None:
    settings = compose(StandaloneSettings, deduplication=True, host="::1", cluster_name="c")
    assert settings.deduplication == DeduplicationSettings(deduplication=True)
    assert (settings.host, settings.cluster_name) == ("::1", "c")
    assert values_of(settings)["deduplication"] is True


def test_names_of_groups_and_unknown_names_are_refused() -> None:
    for name in ("connections", "balance", "nonsense"):
        with pytest.raises(SettingsError, match=name):
            compose(BrokerSettings, **{name: 1})


def test_ranges_are_checked_in_groups_that_are_built_directly() -> None:
    wrong = DeduplicationSettings(deduplication_producers_max=0)
    with pytest.raises(SettingsError, match="deduplication_producers_max is 0"):
        BrokerSettings(deduplication=wrong)


def test_the_default_of_partitions_is_within_their_maximum() -> None:
    with pytest.raises(SettingsError, match="default_partitions is 4, more than partitions_max, 3"):
        compose(
            BrokerSettings,
            auto_topic_creation_type="partitioned",
            default_partitions=4,
            partitions_max=3,
        )
    compose(BrokerSettings, default_partitions=4, partitions_max=3)  # topics have none by default
