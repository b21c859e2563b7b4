"""`magnetar config`: settings of all roles, each with where it applies."""

import pytest

from magnetar.broker.setting import SettingsError, settings_of
from magnetar.cli.config import described, explained, listed, markdown
from magnetar.cli.roles import FLAGS, ROLES


def test_what_roles_share_is_listed_once() -> None:
    roles = {item.name: roles for item, roles in described() if item.name == "message_bytes_max"}
    assert roles == {"message_bytes_max": ("standalone", "broker")}
    ports = [roles for item, roles in described() if item.name == "port"]
    assert ports == [("standalone",), ("broker",), ("bookie",)]


def test_a_key_of_bookkeepers_is_explained() -> None:
    text = explained("journalDirectories")
    assert text.startswith("data_dir\n")
    assert "--data-dir of bookie" in text
    assert "ledgerDirectories, journalDirectories" in text


def test_keys_without_effect_and_unknown_ones_are_told_apart() -> None:
    assert "no effect" in explained("zookeeperServers")
    with pytest.raises(SettingsError, match="DefaultAckQuorum"):
        explained("managedLedgerDefaultAckQourum")


def test_the_list_of_a_role_has_its_settings_and_no_other() -> None:
    for role, cls in ROLES.items():
        names = [line.split()[0] for line in listed(role).splitlines()]
        assert sorted(names) == sorted(settings_of(cls))


def test_flags_are_settings() -> None:
    for role, flags in FLAGS.items():
        assert flags <= settings_of(ROLES[role]).keys()


def test_the_page_names_every_setting() -> None:
    page = markdown()
    for item, _ in described():
        assert f"| `{item.name}` |" in page
