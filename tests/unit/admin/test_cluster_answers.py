"""The answers of peers and how they are merged; the parts of a request that a broker passes on."""

import msgspec
import pytest
from starlette.requests import Request

from magnetar.admin.cluster.answers import (
    NOT_FOUND,
    NOT_FOUND_OR_CONFLICT,
    Refused,
    all_succeeded,
    merged_lists,
    merged_objects,
    raise_refusal,
    reason_of,
    refusal_of,
)
from magnetar.admin.cluster.deletion import mark_of
from magnetar.admin.cluster.partitions import connected_clients
from magnetar.admin.cluster.peers import topic_suffix
from magnetar.admin.cluster.sender import (
    PeerAnswer,
    authoritative,
    forwarded,
)
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import parse_topic
from magnetar.documents.stats import TopicSummary
from magnetar.metadata.store import Check

TOPIC = parse_topic("persistent://t1/n1/p")
DONE, MISSING, CONFLICT, BROKEN = (
    PeerAnswer(status, msgspec.json.encode({"reason": f"said {status}"}))
    for status in (204, 404, 409, 500)
)


def with_body(value: object) -> PeerAnswer:
    return PeerAnswer(200, msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("answers", "tolerated", "status"),
    [
        ([], NOT_FOUND, None),
        ([DONE], NOT_FOUND, None),
        ([DONE, MISSING], NOT_FOUND, None),
        ([MISSING, DONE], NOT_FOUND, None),
        ([MISSING], NOT_FOUND, 404),
        ([MISSING, MISSING], NOT_FOUND, 404),
        ([DONE, MISSING], (), 404),
        ([DONE, CONFLICT], NOT_FOUND, 409),
        ([DONE, CONFLICT, MISSING], NOT_FOUND_OR_CONFLICT, None),
        ([CONFLICT, MISSING], NOT_FOUND_OR_CONFLICT, 409),
        ([MISSING, BROKEN], NOT_FOUND, 500),
        ([DONE, MISSING, BROKEN, CONFLICT], NOT_FOUND, 500),
    ],
)
def test_a_refusal_answers_the_request_if_it_is_not_tolerated_or_all_refuse(
    answers: list[PeerAnswer], tolerated: frozenset[int], status: int | None
) -> None:
    refusal = refusal_of(answers, tolerated)
    assert (None if refusal is None else refusal.status_code) == status
    if refusal is not None:
        assert msgspec.json.decode(bytes(refusal.body)) == {"reason": f"said {status}"}
        assert refusal.headers["content-type"] == "application/json"
    assert all_succeeded(tolerated)(answers).status_code == (status or 204)


def test_lists_and_objects_are_merged_and_missing_partitions_are_skipped() -> None:
    lists = [with_body(["b", "a"]), MISSING, with_body(["c", "a"])]
    assert msgspec.json.decode(bytes(merged_lists(lists).body)) == ["a", "b", "c"]
    objects = [MISSING, with_body({"a": 1}), with_body({"b": 2})]
    assert msgspec.json.decode(bytes(merged_objects(objects).body)) == {"a": 1, "b": 2}
    differing = [with_body({"a": 1, "b": 1}), with_body({"a": 2}), MISSING]
    assert msgspec.json.decode(bytes(merged_objects(differing).body)) == {"a": 2, "b": 1}
    for merge in (merged_lists, merged_objects):
        assert merge([MISSING, MISSING]).status_code == 404
        assert merge([lists[0] if merge is merged_lists else objects[1], BROKEN]).status_code == 500


def test_an_answer_of_another_type_is_not_merged() -> None:
    for merge, good, bad in (
        (merged_lists, ["a"], {"b": 1}),
        (merged_lists, ["a"], [1]),
        (merged_objects, {}, ["b"]),
    ):
        with pytest.raises(msgspec.ValidationError):
            merge([with_body(good), with_body(bad)])


def test_the_refusal_of_a_peer_is_raised_unless_it_is_tolerated() -> None:
    raise_refusal([DONE, MISSING], NOT_FOUND)
    raise_refusal([], ())
    with pytest.raises(Refused, match="said 500") as failure:
        raise_refusal([DONE, MISSING, BROKEN, CONFLICT], NOT_FOUND)
    assert failure.value.http_status == 500


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"reason":"no"}', "no"),
        (b'{"reason":""}', '{"reason":""}'),
        (b'{"other":"x"}', '{"other":"x"}'),
        (b"[1]", "[1]"),
        (b'{"reason":null}', '{"reason":null}'),
        (b"no JSON", "no JSON"),
        (b"\xff", "\ufffd"),
        (b"", "status 503"),
    ],
)
def test_a_refusal_is_passed_on_with_the_reason_of_the_peer(body: bytes, reason: str) -> None:
    assert reason_of(PeerAnswer(503, body)) == reason


@pytest.mark.parametrize(
    ("stats", "clients"),
    [
        ({"publishers": [], "subscriptions": {}}, (0, 0)),
        ({"publishers": [1, 2], "subscriptions": {"s": {}}}, (2, 0)),
        ({"publishers": [], "subscriptions": {"s": {"consumers": None}}}, (0, 0)),
        (
            {
                "publishers": [1],
                "subscriptions": {"s": {"consumers": [{}, {}]}, "t": {"consumers": [{}]}},
            },
            (1, 3),
        ),
    ],
)
def test_every_producer_and_consumer_counts_as_connected(
    stats: object, clients: tuple[int, int]
) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(stats), type=TopicSummary)
    assert connected_clients(decoded) == clients


def request_of(path: str, query: str = "", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "PUT", "path": path, "query_string": query.encode()}
    return Request({**scope, "headers": raw})


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("", "authoritative=true"),
        ("force=true", "force=true&authoritative=true"),
        ("authoritative=false&force=true", "force=true&authoritative=true"),
        ("key=a%26b&empty=", "key=a%26b&empty=&authoritative=true"),
        ("x=1&x=2", "x=1&x=2&authoritative=true"),
    ],
)
def test_a_request_that_is_passed_on_keeps_its_query_and_is_authoritative(
    query: str, sent: str
) -> None:
    assert authoritative(query) == sent


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        ("/admin/v2/persistent/t/n/a", ""),
        ("/admin/v2/persistent/t/n/a/stats", "/stats"),
        ("/admin/v2/persistent/t/n/a%2Fb/subscription/s%2F1/skip/5", "/subscription/s%2F1/skip/5"),
    ],
)
def test_the_path_after_a_topics_name_stays_encoded(path: str, suffix: str) -> None:
    assert topic_suffix(request_of(path)) == suffix


def test_only_the_content_type_is_passed_on() -> None:
    request = request_of("/", authorization="Bearer x", content_type="text/plain", cookie="c")
    assert forwarded(request) == {"content-type": "text/plain"}
    assert forwarded(request_of("/", host="h", x_magnetar_local="1")) == {}


@pytest.mark.parametrize(
    ("header", "mark"),
    [
        ("7 /namespaces/t/n", Check("/namespaces/t/n", 7)),
        ("8 /topics/t/n/a%20b", Check("/topics/t/n/a b", 8)),
    ],
)
def test_a_mark_is_decoded(header: str, mark: Check) -> None:
    assert mark_of(request_of("/", x_magnetar_under=header)) == mark
    assert mark_of(request_of("/")) is None


@pytest.mark.parametrize("header", ["", "7", "7 ", " /a", "-7 /a", "x /a", "1.5 /a"])
def test_an_incomplete_mark_is_refused_and_not_ignored(header: str) -> None:
    with pytest.raises(PreconditionFailed, match="must be a revision and a key"):
        mark_of(request_of("/", x_magnetar_under=header))
