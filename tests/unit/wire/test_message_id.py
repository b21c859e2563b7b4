"""Numbers and bit sets of message ids, and the hash of topic lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.message_id import (
    ACK_SET_WORDS_MAX,
    ack_set_bits,
    ack_set_words,
    full_ack_set,
    message_id_data,
    signed64,
    unsigned64,
)
from magnetar.wire.topics_hash import topics_hash


@given(st.integers(-(2**63), 2**63 - 1))
def test_signs(value: int) -> None:
    assert signed64(unsigned64(value)) == value


def test_minus_one() -> None:
    assert unsigned64(-1) == 2**64 - 1
    assert message_id_data(-1, -1) == pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    assert message_id_data(1, 2, 3, 4) == pb.MessageIdData(
        ledgerId=1, entryId=2, partition=3, batch_index=4
    )


@given(st.integers(0, 2**300))
def test_ack_sets(bits: int) -> None:
    words = ack_set_words(bits)
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert ack_set_bits(words) == bits


def test_ack_set_words_are_those_of_a_java_bit_set() -> None:
    assert ack_set_words(full_ack_set(64)) == [-1]
    assert ack_set_words(full_ack_set(65)) == [-1, 1]
    assert ack_set_words(1 << 63) == [-(2**63)]
    assert ack_set_words(0) == []
    assert ack_set_bits([6]) == 0b110


def test_an_endless_ack_set_is_bounded() -> None:
    assert ack_set_bits([-1] * (ACK_SET_WORDS_MAX + 5)).bit_length() == 64 * ACK_SET_WORDS_MAX


@pytest.mark.parametrize(
    ("topics", "digits"),
    [
        ([], "00000000"),
        (["persistent://public/default/b", "persistent://public/default/a"], "c7559e98"),
        (["persistent://public/default/my-topic-\u00e9"], "8f2f67cc"),
        (["t-\uff5e", "t-\U0001f600"], "dbc8223f"),
    ],
)
def test_topics_hash_is_that_of_pulsar(topics: list[str], digits: str) -> None:
    """The digits are what `TopicList.calculateHash` of Pulsar 4.2.4 gives."""
    assert topics_hash(topics) == digits
    assert topics_hash(reversed(topics)) == digits
