"""Values of policies from manifests to REST and back: no rounding, and errors with reasons."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.drawn_policies import manifests

from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import BY_NAME, POLICIES, at
from magnetar.policies.types import Integer, PolicyInvalid, Record, Unit
from magnetar_operator.models.policy_schema import of_type
from magnetar_operator.models.values import (
    all_to_rest,
    format_duration,
    format_size,
    from_rest,
    parse_duration,
    parse_size,
    seconds,
    suffixes,
    to_rest,
)

DURATIONS = (Unit.SECONDS, Unit.MINUTES, Unit.MILLISECONDS)
SIZES = (Unit.BYTES, Unit.MEBIBYTES, Unit.BYTES_PER_SECOND)


def holds(policy: Policy, manifest: object) -> bool:
    try:
        to_rest(policy, manifest)
    except PolicyInvalid:
        return False
    return True


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=50)
@given(data=st.data())
def test_values_of_rest_survive_a_round_trip(policy: Policy, data: Any) -> None:
    manifest = data.draw(manifests(policy.type).filter(lambda one: holds(policy, one)))
    rest = to_rest(policy, manifest)
    written = from_rest(policy, rest)
    assert to_rest(policy, written) == rest
    assert from_rest(policy, to_rest(policy, written)) == written


@given(st.integers(-1, 2**63 - 1), st.sampled_from(DURATIONS))
def test_a_duration_is_read_as_it_was_written(count: int, unit: Unit) -> None:
    assert parse_duration(format_duration(count, unit), unit) == count


@given(st.integers(-1, 2**63 - 1), st.sampled_from(SIZES))
def test_a_size_is_read_as_it_was_written(count: int, unit: Unit) -> None:
    assert parse_size(format_size(count, unit), unit) == count


@pytest.mark.parametrize(
    ("text", "unit", "count"),
    [
        ("7d", Unit.MINUTES, 10_080),
        ("120s", Unit.MINUTES, 2),
        ("12h", Unit.SECONDS, 43_200),
        ("2w", Unit.SECONDS, 1_209_600),
        ("500ms", Unit.MILLISECONDS, 500),
        ("90s", Unit.MILLISECONDS, 90_000),
        (90, Unit.SECONDS, 90),
        ("90", Unit.MINUTES, 90),
        ("-1", Unit.MINUTES, -1),
        (-1, Unit.MINUTES, -1),
        ("0d", Unit.SECONDS, 0),
    ],
)
def test_durations(text: object, unit: Unit, count: int) -> None:
    assert parse_duration(text, unit) == count


@pytest.mark.parametrize(
    ("text", "unit", "count"),
    [
        ("10Gi", Unit.MEBIBYTES, 10_240),
        ("512Mi", Unit.BYTES, 536_870_912),
        ("5G", Unit.BYTES, 5_000_000_000),
        ("1k", Unit.BYTES_PER_SECOND, 1_000),
        ("2048Ki", Unit.MEBIBYTES, 2),
        ("-1", Unit.MEBIBYTES, -1),
        (1_000, Unit.BYTES, 1_000),
    ],
)
def test_sizes(text: object, unit: Unit, count: int) -> None:
    assert parse_size(text, unit) == count


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        ({"retention": {"time": "90s", "size": -1}},
         ("spec.policies.retention.time: 90s is no whole number of minutes; the nearest are 1m and "
         "2m")),
        ({"messageTTL": "500ms"},
         "spec.policies.messageTTL: 500ms is no whole number of seconds; the nearest are 0 and 1s"),
        ({"retention": {"time": "1d", "size": "1G"}},
         ("spec.policies.retention.size: 1G is no whole number of MiB; the nearest are 953Mi and "
         "954Mi")),
        ({"messageTTL": "7x"},
         "spec.policies.messageTTL: must end in one of ms, s, m, h, d, w, or in no letter: '7x'"),
        ({"messageTTL": "a week"},
         ("spec.policies.messageTTL: must be a duration such as 90s, 12h or 7d, or a number of "
         "seconds: 'a week'")),
        ({"messageTTL": True},
         ("spec.policies.messageTTL: must be a duration such as 90s, 12h or 7d, or a number of "
         "seconds: True")),
        ({"messageTTL": "-1"},
         "spec.policies.messageTTL: must be 0 or more, and is -1 (in seconds)"),
        ({"retention": {"time": "7d"}}, "spec.policies.retention.size: must be there"),
        ({"retention": {"time": "7d", "size": -1, "sizes": 1}},
         "spec.policies.retention.sizes: is not known; there are time, size"),
        ({"retention": "7d"}, "spec.policies.retention: must be an object, and is '7d'"),
        ({"backlogQuota": {"message_age": {"time": "1.5h", "policy": "producer_exception"}}},
         ("spec.policies.backlogQuota.message_age.time: must be a duration such as 90s, 12h or 7d, "
         "or a number of seconds: '1.5h'")),
        ({"maxProducersPerTopic": "3"},
         "spec.policies.maxProducersPerTopic: must be a whole number, and is '3'"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_and_the_fix(policies: dict[str, Any], text: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        all_to_rest(Level.TOPIC, policies)
    assert str(caught.value) == text


def test_a_policy_of_another_level_is_refused() -> None:
    with pytest.raises(PolicyInvalid, match=r"spec\.policies\.maxTopicsPerNamespace: is no policy"):
        all_to_rest(Level.TOPIC, {"maxTopicsPerNamespace": 1})
    assert all_to_rest(Level.NAMESPACE, {"maxTopicsPerNamespace": 1}) == {"max_topics": 1}


def test_absent_fields_of_a_record_have_their_defaults() -> None:
    assert to_rest(BY_NAME["publish_rate"], {"bytes": "1Mi"}) == {
        "publishThrottlingRateInMsg": -1,
        "publishThrottlingRateInByte": 1_048_576,
    }


def test_unknown_fields_of_rest_are_dropped() -> None:
    given_by_rest = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 2_048, "extra": 1}
    assert from_rest(BY_NAME["retention"], given_by_rest) == {"time": "1h", "size": "2Gi"}


@pytest.mark.parametrize(
    ("value", "count"), [(30, 30.0), ("30", 30.0), ("500ms", 0.5), ("2m", 120.0), ("0", 0.0)]
)
def test_durations_of_specs_count_seconds(value: int | str, count: float) -> None:
    assert seconds(value) == count


def integers() -> list[Integer]:
    """Of all policies, those that are written with a unit."""
    found: list[Integer] = []
    for policy in (*at(Level.NAMESPACE), *at(Level.TOPIC)):
        types = (
            [field.type for field in policy.type.fields]
            if isinstance(policy.type, Record)
            else [policy.type]
        )
        found += [
            value_type
            for value_type in types
            if isinstance(value_type, Integer) and suffixes(value_type.unit)
        ]
    return sorted(set(found), key=repr)


@given(
    st.sampled_from(integers()),
    st.from_regex(r"-?[0-9]{0,3}(ms|s|m|h|d|w|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|x)?", fullmatch=True),
)
def test_the_schemas_pattern_accepts_parsed_values(kind: Integer, text: str) -> None:
    """Except values that the unit or the range excludes: OpenAPI cannot express that."""
    matches = re.search(of_type(kind)["pattern"], text) is not None
    parse = parse_duration if kind.unit.is_duration else parse_size
    refused = ""
    try:
        kind.check(parse(text, kind.unit))
    except PolicyInvalid as error:
        refused = str(error)
    if refused and re.search(r"no whole number|must be -?[0-9]+ or (more|less)", refused) is None:
        assert not matches, refused
    if not refused:
        assert matches
