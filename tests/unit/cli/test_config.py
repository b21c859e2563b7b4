"""`magnetar config`: the settings of all roles."""

import pytest

from magnetar.cli.config import described, explained, listed, markdown
from magnetar.cli.roles import FLAGS, ROLES
from magnetar.settings.field import SettingsError, settings_of


def test_a_shared_setting_is_listed_once() -> None:
    roles = {item.name: roles for item, roles in described() if item.name == "message_bytes_max"}
    assert roles == {"message_bytes_max": ("standalone", "broker")}
    ports = [roles for item, roles in described() if item.name == "port"]
    assert ports == [("standalone",), ("broker",), ("bookie",)]


def test_a_key_of_bookkeeper_is_explained() -> None:
    text = explained("journalDirectories")
    assert text.startswith("data_dir\n")
    assert "--data-dir of bookie" in text
    assert "ledgerDirectories, journalDirectories" in text


def test_keys_without_effect_differ_from_unknown_keys() -> None:
    assert "no effect" in explained("numIOThreads")
    assert "another store than metadata_url" in explained("zookeeperServers")
    assert "no WebSocket" in explained("webSocketServiceEnabled")
    with pytest.raises(SettingsError, match="DefaultAckQuorum"):
        explained("managedLedgerDefaultAckQourum")


def test_the_list_of_a_role_has_exactly_its_settings() -> None:
    for role, cls in ROLES.items():
        names = [line.split()[0] for line in listed(role).splitlines()]
        assert sorted(names) == sorted(settings_of(cls))


def test_flags_are_settings() -> None:
    for role, flags in FLAGS.items():
        assert flags <= settings_of(ROLES[role]).keys()


def test_the_page_has_every_setting() -> None:
    page = markdown()
    for item, _ in described():
        assert f"| `{item.name}` |" in page
