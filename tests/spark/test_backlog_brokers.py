"""The requests of the job `backlog` to brokers, and its report if they do not answer."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.spark.backlog_stage import TOPIC, Backlogs, holes, messages, nothing

ADMIN = "http://broker:8080"


@pytest.fixture
def backlogs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Backlogs:
    return Backlogs(monkeypatch, tmp_path, capsys)


class Broker:
    """The admin REST of a broker: it answers from `answers`, or else with 404."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, Any] = {
            "/admin/v2/brokers/configuration/runtime": {
                "defaultRetentionTimeInMinutes": "5",
                "defaultRetentionSizeInMB": "7",
                "ttlDurationDefaultInSeconds": "30",
            }
        }
        self.clients: list[httpx.AsyncClient] = []
        transport, client = httpx.MockTransport(self._answer), httpx.AsyncClient

        def made(**options: Any) -> httpx.AsyncClient:
            self.clients.append(client(transport=transport, **options))
            return self.clients[-1]

        monkeypatch.setattr(httpx, "AsyncClient", made)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        assert str(request.url).startswith(f"{ADMIN}/admin/v2/")
        if path not in self.answers:
            return httpx.Response(404)
        return httpx.Response(200, json=self.answers[path])

    def stats(self, topic: str, **fields: Any) -> None:
        self.answers[f"/admin/v2/{topic.replace('://', '/')}/stats"] = fields


def consumer(name: str, unacked: int, **fields: Any) -> dict[str, Any]:
    return {
        "consumerName": name,
        "unackedMessages": unacked,
        "lastAckedTimestamp": 0,
        "address": f"{name}:1",
        "availablePermits": 9,
        **fields,
    }


def test_who_holds_a_backlog_is_asked_of_brokers(
    backlogs: Backlogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Broker(monkeypatch)
    backlogs.topic(TOPIC, messages(backlogs, 10), {"holes": holes, "none": nothing})
    at_ms = backlogs.clock.now_ms()
    asked.stats(
        TOPIC,
        publishers=[{}, {}],
        subscriptions={
            "holes": {
                "type": "Key_Shared",
                "unackedMessages": 5,
                "keySharedMode": "AUTO_SPLIT",
                "consumers": [
                    consumer("low", 1, keyHashRangeArrays=[[0, 32767]], lastAckedTimestamp=at_ms),
                    consumer("high", 4, keyHashRangeArrays=[[32768, 65535]]),
                ],
            },
        },
    )
    backlogs.run("--admin-url", f"{ADMIN}/")
    row = backlogs.row("subscriptions", subscription="holes")
    assert (row["asked"], row["type"], row["consumers"]) == (True, "Key_Shared", 2)
    assert (row["unacked_messages"], row["held_by"]) == (5, "high, low")
    none = backlogs.row("subscriptions", subscription="none")
    assert (none["asked"], none["type"], none["consumers"], none["held_by"]) == (True, "", None, "")
    topic = backlogs.row("topics")
    assert (topic["asked"], topic["publishers"], topic["ttl_s"]) == (True, 2, 30)
    assert (topic["retention_ms"], topic["retention_bytes"]) == (300_000, 7 << 20)
    assert {each["held_by"] for each in backlogs.rows("ack_holes")} == {"high, low"}
    by_key = {
        each["key_text"]: each["held_by"]
        for each in backlogs.rows("unread_keys", subscription="holes")
    }
    assert set(by_key.values()) <= {"high", "low"}
    assert backlogs.rows("consumers") == [
        {
            "topic": TOPIC,
            "subscription": "holes",
            "consumer": name,
            "address": f"{name}:1",
            "unacked_messages": unacked,
            "available_permits": 9,
            "last_acked": acked_at,
        }
        for name, unacked, acked_at in (("low", 1, backlogs.time()), ("high", 4, None))
    ]
    assert "No broker was asked" not in (backlogs.output / "report.html").read_text()
    assert all(each.is_closed for each in asked.clients)


def test_a_broker_that_does_not_answer_leaves_what_metadata_says(
    backlogs: Backlogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Broker(monkeypatch)
    asked.answers.clear()
    backlogs.topic(TOPIC, messages(backlogs, 10), {"none": nothing})
    found = backlogs.run("--admin-url", ADMIN)
    assert (found["code"], found["state"]) == (0, "succeeded")
    row, topic = backlogs.row("subscriptions"), backlogs.row("topics")
    assert (row["entries"], row["asked"], topic["publishers"], topic["ttl_s"]) == (
        10,
        False,
        None,
        0,
    )
    page = (backlogs.output / "report.html").read_text()
    assert "Of some topics no broker answered for stats." in page
    assert "defaults of retention and TTL are unknown" in page
    assert backlogs.rows("consumers") == []


def test_defaults_that_were_given_are_not_requested(
    backlogs: Backlogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Broker(monkeypatch)
    asked.answers.clear()
    asked.stats(TOPIC, subscriptions={}, publishers=[])
    backlogs.topic(TOPIC, messages(backlogs, 1), {})
    backlogs.run("--admin-url", ADMIN, "--default-ttl", "9s")
    assert backlogs.row("topics")["ttl_s"] == 9
    page = (backlogs.output / "report.html").read_text()
    assert "no broker answered" not in page
    assert "defaults of retention and TTL are unknown" not in page


def test_a_broker_that_says_no_defaults_is_no_reason_to_trim(
    backlogs: Backlogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Broker(monkeypatch)
    asked.answers = {"/admin/v2/brokers/configuration/runtime": {}}
    backlogs.topic(TOPIC, messages(backlogs, 1), {})
    backlogs.run("--admin-url", ADMIN)
    assert "does not say" in (backlogs.output / "report.html").read_text()
