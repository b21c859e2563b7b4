"""Expressions of entry filters: their language, and what they refuse."""

import fnmatch
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.policies.selector import (
    EXPRESSION_CHARACTERS_MAX,
    NESTING_MAX,
    Message,
    SelectorInvalid,
    matches,
    parse,
)

MESSAGE = Message({"region": "eu", "amount": "12.5", "kind": "a'b", "odd name": "x"}, "order-7")
TRUE = [
    "region = 'eu'",
    "region <> 'us'",
    "region != 'us' and REGION is null",
    "amount > 12 AND amount < 13",
    "amount >= 12.5 AND amount <= 12.5 AND amount = 12.50",
    "amount between 1 and 20",
    "NOT amount BETWEEN 13 AND 20",
    "amount not between 13 and 20",
    "kind = 'a''b'",
    "\"odd name\" = 'x'",
    "key like 'order-%'",
    "key LIKE '_rder-7'",
    "key NOT LIKE 'x%'",
    "region in ('us', 'eu')",
    "region not in ('us', 'asia')",
    "missing IS NULL",
    "region IS NOT NULL",
    "region = 'us' or (region = 'eu' and not missing is not null)",
    "1 = 1",
    "region > 'a'",
    "not not region = 'eu'",
    "amount = 1.25e1",
]
FALSE = [
    "region = 'us'",
    "missing = 'x'",
    "missing <> 'x'",
    "not missing = 'x'",
    "missing in ('a')",
    "missing not in ('a')",
    "missing like '%'",
    "region > 1",
    "not region > 1",
    "amount = '12.50'",
    "region = 'eu' and missing = 'x'",
    "missing = 'x' or region = 'us'",
    "key = 'ORDER-7'",
]
INVALID = {
    "": "it ends where a property, a text or a number is expected",
    "region": "it ends where an operator is expected",
    "region = ": "it ends where a property",
    "region = 'eu": "character 9 starts no",
    "region = 'eu' extra": "expected the end",
    "(region = 'eu'": "it ends where ) is expected",
    "region like 5": "5 at character 13: expected a text in single quotes",
    "region between 1 or 2": "expected AND",
    "region in 'eu'": "expected (",
    "region is 5": "expected NULL",
    "= 5": "= at character 1: expected a property",
    "__import__('os')": "expected an operator",
    "a; b": "character 2 starts no",
    "(" * (NESTING_MAX + 2) + "a = 1" + ")" * (NESTING_MAX + 2): "nests more than",
    "a = 1 or " * EXPRESSION_CHARACTERS_MAX: "longer than",
}


@pytest.mark.parametrize("expression", TRUE)
def test_true(expression: str) -> None:
    assert parse(expression)(MESSAGE)


@pytest.mark.parametrize("expression", FALSE)
def test_not_true(expression: str) -> None:
    assert not parse(expression)(MESSAGE)


@pytest.mark.parametrize(("expression", "text"), INVALID.items(), ids=range(len(INVALID)))
def test_invalid(expression: str, text: str) -> None:
    with pytest.raises(SelectorInvalid) as caught:
        parse(expression)
    assert text in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        condition = parse(text)
    except SelectorInvalid:
        return
    assert condition(MESSAGE) in (True, False)


@given(st.text("ab%_", max_size=8), st.text("ab", max_size=8))
@settings(max_examples=300)
def test_like_is_as_a_pattern_of_file_names(pattern: str, text: str) -> None:
    as_file_name = pattern.replace("%", "*").replace("_", "?")
    assert matches(pattern, text) is fnmatch.fnmatchcase(text, as_file_name)


def test_three_valued_logic() -> None:
    values = {"true": "1 = 1", "false": "1 = 2", "unknown": "missing = 1"}
    for first, second in itertools.product(values, repeat=2):
        both = parse(f"{values[first]} and {values[second]}")(MESSAGE)
        either = parse(f"{values[first]} or {values[second]}")(MESSAGE)
        neither = parse(f"not ({values[first]} or {values[second]})")(MESSAGE)
        assert both is (first == second == "true")
        assert either is ("true" in (first, second))
        assert neither is (first == second == "false")


def test_like_takes_no_exponential_time() -> None:
    assert not matches("%a" * 500 + "b", "a" * 5_000)
