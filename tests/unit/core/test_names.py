"""Names that clients send: refusals, partitions, and maximum lengths."""

import pytest

from magnetar.core.errors import InvalidTopicName, PreconditionFailed
from magnetar.core.names import NAME_CHARACTERS_MAX, NamespaceName, parse_topic


@pytest.mark.parametrize(
    "text",
    [
        "public\n/default/t",
        "public/default\n/t",
        "persistent://public/default\n/t",
        "t" * (NAME_CHARACTERS_MAX + 1),
        "",
        "a/b",
        "queue://public/default/t",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        parse_topic(text)


def test_a_namespace_ends_with_its_last_letter() -> None:
    with pytest.raises(PreconditionFailed):
        NamespaceName.parse("public/default\n")


@pytest.mark.parametrize(
    ("local", "index"),
    [
        ("t-partition-0", 0),
        ("t-partition-2147483647", 2147483647),
        ("t-partition-2147483648", -1),
        ("t-partition-" + "9" * 4_050, -1),
        ("t-partition-01", -1),
        ("t-partition-", -1),
        ("t-partition-\u0663", -1),
        ("t", -1),
    ],
)
def test_a_partition_has_a_canonical_number_of_31_bits(local: str, index: int) -> None:
    assert parse_topic(local).partition_index == index


@pytest.mark.parametrize("local", ["größe", "主题", "a b", "x%2Fy", "t\n"])
def test_any_character_survives_the_way_into_metadata_and_back(local: str) -> None:
    name = parse_topic(f"persistent://public/default/{local}")
    again = name.from_encoded("persistent", name.namespace, name.encoded_local)
    assert again == name
    assert "/" not in name.encoded_local
