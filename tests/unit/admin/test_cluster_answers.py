"""What a broker makes of its peers' answers, and what it sends on of a request."""

from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from magnetar.admin.cluster.deletion import mark_of
from magnetar.admin.cluster.partitions import (
    NOT_FOUND,
    NOT_FOUND_OR_THERE,
    Refused,
    all_done,
    clients_of,
    merged,
    raise_refusal,
    reason_of,
    refused,
    union,
)
from magnetar.admin.cluster.peers import topic_suffix
from magnetar.admin.cluster.sending import (
    Answer,
    authoritative,
    forwarded,
)
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import parse_topic
from magnetar.metadata.store import Check

TOPIC = parse_topic("persistent://t1/n1/p")
DONE, MISSING, THERE, BROKEN = (
    Answer(status, msgspec.json.encode({"reason": f"said {status}"}))
    for status in (204, 404, 409, 500)
)


def with_body(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value))


# -- merging


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
        ([DONE, THERE], NOT_FOUND, 409),
        ([DONE, THERE, MISSING], NOT_FOUND_OR_THERE, None),
        ([THERE, MISSING], NOT_FOUND_OR_THERE, 409),
        ([MISSING, BROKEN], NOT_FOUND, 500),
        ([DONE, MISSING, BROKEN, THERE], NOT_FOUND, 500),
    ],
)
def test_a_refusal_stands_for_all_where_it_is_not_tolerated_or_all_refuse(
    answers: list[Answer], tolerated: frozenset[int], status: int | None
) -> None:
    found = refused(answers, tolerated)
    assert (None if found is None else found.status_code) == status
    if found is not None:
        assert msgspec.json.decode(bytes(found.body)) == {"reason": f"said {status}"}
    assert all_done(tolerated)(answers).status_code == (status or 204)


def test_lists_and_objects_are_put_together_from_those_that_have_any() -> None:
    lists = [with_body(["b", "a"]), MISSING, with_body(["c", "a"])]
    assert msgspec.json.decode(bytes(union(lists).body)) == ["a", "b", "c"]
    objects = [MISSING, with_body({"a": 1}), with_body({"b": 2})]
    assert msgspec.json.decode(bytes(merged(objects).body)) == {"a": 1, "b": 2}
    for merge in (union, merged):
        assert merge([MISSING, MISSING]).status_code == 404
        assert merge([lists[0] if merge is union else objects[1], BROKEN]).status_code == 500


def test_what_one_peer_refuses_is_raised_unless_it_is_tolerated() -> None:
    raise_refusal([DONE, MISSING], NOT_FOUND)
    raise_refusal([], ())
    with pytest.raises(Refused, match="said 500") as failure:
        raise_refusal([DONE, MISSING, BROKEN, THERE], NOT_FOUND)
    assert failure.value.http_status == 500


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"reason":"no"}', "no"),
        (b'{"reason":""}', '{"reason":""}'),
        (b'{"other":"x"}', '{"other":"x"}'),
        (b"[1]", "[1]"),
        (b"no JSON", "no JSON"),
        (b"\xff", "\ufffd"),
        (b"", "status 503"),
    ],
)
def test_a_refusal_is_passed_on_in_the_words_of_the_peer(body: bytes, reason: str) -> None:
    assert reason_of(Answer(503, body)) == reason


@pytest.mark.parametrize(
    ("stats", "clients"),
    [
        ({"publishers": [], "subscriptions": {}}, (0, 0)),
        ({"publishers": [1, 2], "subscriptions": {"s": {}}}, (2, 0)),
        ({"publishers": [], "subscriptions": {"s": {"consumers": None}}}, (0, 0)),
        (
            {
                "publishers": [1],
                "subscriptions": {"s": {"consumers": [1, 2]}, "t": {"consumers": [3]}},
            },
            (1, 3),
        ),
    ],
)
def test_every_producer_and_consumer_counts_as_connected(
    stats: dict[str, Any], clients: tuple[int, int]
) -> None:
    assert clients_of(stats) == clients


# -- what is sent


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
def test_a_request_sent_on_says_what_it_said_and_that_it_is_to_be_served(
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
def test_what_follows_a_topics_name_is_sent_as_it_came(path: str, suffix: str) -> None:
    assert topic_suffix(request_of(path)) == suffix


def test_who_asks_and_what_the_body_is_goes_with_a_request_and_nothing_else() -> None:
    request = request_of("/", authorization="Bearer x", content_type="text/plain", cookie="c")
    assert forwarded(request) == {"authorization": "Bearer x", "content-type": "text/plain"}
    assert forwarded(request_of("/", host="h", x_magnetar_local="1")) == {}


@pytest.mark.parametrize(
    ("header", "mark"),
    [
        ("7 /namespaces/t/n", Check("/namespaces/t/n", 7)),
        ("8 /topics/t/n/a%20b", Check("/topics/t/n/a b", 8)),
    ],
)
def test_a_mark_is_read_as_it_was_sent(header: str, mark: Check) -> None:
    assert mark_of(request_of("/", x_magnetar_under=header)) == mark
    assert mark_of(request_of("/")) is None


@pytest.mark.parametrize("header", ["", "7", "7 ", " /a", "-7 /a", "x /a", "1.5 /a"])
def test_a_mark_that_is_not_whole_is_refused_and_not_ignored(header: str) -> None:
    with pytest.raises(PreconditionFailed, match="must be a revision and a key"):
        mark_of(request_of("/", x_magnetar_under=header))
