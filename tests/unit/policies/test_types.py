"""Values of policies: accepted ones, and the errors for others."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.policy_values import values, wrong

from magnetar.policies.registry import POLICIES
from magnetar.policies.types import (
    ITEMS_MAX,
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    PolicyInvalid,
    PolicyMalformed,
    Record,
    Rule,
    Text,
    Type,
)

WORDS = Choice({"a": "one", "b": "two"})
PAIR = Record(
    (
        Field("low", Integer(), "The low one."),
        Field("high", Integer(), "The high one.", default=10, alias="top"),
        Field("note", Text(), "A note.", default=None),
    ),
    rules=(Rule("self.low <= self.high", "low is above high", lambda v: v["low"] <= v["high"]),),
)
REFUSED = [
    (Integer(), "5", PolicyMalformed, "must be a whole number, and is '5'"),
    (Integer(), True, PolicyMalformed, "must be a whole number, and is True"),
    (Integer(), 1.0, PolicyMalformed, "must be a whole number, and is 1.0"),
    (Integer(low=-1), -2, PolicyInvalid, "must be -1 or more, and is -2"),
    (Integer(high=9), 10, PolicyInvalid, "must be 9 or less, and is 10"),
    (Integer(), 2**31, PolicyMalformed, "must be 2147483647 or less, and is 2147483648"),
    (Number(), math.nan, PolicyMalformed, "must be a number, and is nan"),
    (Number(high=1.0), 1.5, PolicyInvalid, "must be 0 to 1, and is 1.5"),
    (Boolean(), 1, PolicyMalformed, "must be true or false, and is 1"),
    (Text(), 1, PolicyMalformed, "must be a text, and is 1"),
    (Text("[a-z]+"), "A", PolicyInvalid, "must match [a-z]+, and is 'A'"),
    (Text(), "x" * 5_000, PolicyInvalid, "must have at most 4096 characters"),
    (WORDS, "c", PolicyInvalid, "must be one of a, b: 'c'"),
    (ListOf(WORDS), {}, PolicyMalformed, "must be a list, and is {}"),
    (ListOf(WORDS), ["a", "a"], PolicyInvalid, "[1]: 'a' is there twice"),
    (ListOf(WORDS), ["a", "c"], PolicyInvalid, "[1]: must be one of a, b: 'c'"),
    (ListOf(Integer()), list(range(ITEMS_MAX + 1)), PolicyInvalid, "must have at most 1000 items"),
    (MapOf(WORDS, Integer()), [], PolicyMalformed, "must be an object, and is []"),
    (MapOf(WORDS, Integer()), {"a": -1}, PolicyInvalid, "a: must be 0 or more, and is -1"),
    (MapOf(WORDS, Integer()), {"c": 1}, PolicyInvalid, ", key: must be one of a, b: 'c'"),
    (PAIR, [], PolicyMalformed, "must be an object, and is []"),
    (PAIR, {"high": 3}, PolicyMalformed, "low: must be there"),
    (PAIR, {"low": 11}, PolicyInvalid, "low is above high"),
    (PAIR, {"low": -1}, PolicyInvalid, "low: must be 0 or more, and is -1"),
]


@pytest.mark.parametrize(("kind", "value", "error", "text"), REFUSED)
def test_what_is_refused_says_why(
    kind: Type, value: object, error: type[PolicyInvalid], text: str
) -> None:
    with pytest.raises(PolicyInvalid) as raised:
        kind.check(value)
    assert type(raised.value) is error
    assert text in str(raised.value)


def test_a_refusal_names_the_field() -> None:
    with pytest.raises(PolicyInvalid, match=r"^quota\.low: must be 0 or more"):
        PAIR.check({"low": -5}, "quota")


def test_a_record_is_filled_with_its_defaults_and_nothing_else() -> None:
    assert PAIR.check({"low": 1, "other": 2}) == {"low": 1, "high": 10}
    assert PAIR.check({"low": 1, "high": None, "note": "x"}) == {"low": 1, "high": 10, "note": "x"}
    assert PAIR.check({"low": 1, "top": 5}) == {"low": 1, "high": 5}
    assert PAIR.check({"low": 1, "top": 5, "high": 6}) == {"low": 1, "high": 6}


@given(st.data())
def test_what_was_checked_stays_as_it_is(data: st.DataObject) -> None:
    policy = data.draw(st.sampled_from(POLICIES))
    once = policy.type.check(data.draw(values(policy.type)))
    assert policy.type.check(once) == once


@given(st.data())
def test_nothing_wrong_passes(data: st.DataObject) -> None:
    policy = data.draw(st.sampled_from(POLICIES))
    value = data.draw(wrong(policy.type))
    with pytest.raises(PolicyInvalid) as raised:
        policy.type.check(value, policy.name)
    assert policy.name in str(raised.value)
