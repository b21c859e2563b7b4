"""Every policy answers as Pulsar 4.2.4, whose answers were recorded, in the same order.

`pulsar-4.2.4.json` has the requests of each policy and level (unset, set, get, applied, values at
and beyond their ranges, bodies of wrong types, for all clusters, removed, of topics and namespaces
that do not exist) with status and answer. Ours are the same, except for the differences listed here
with their reasons. If only one of both accepted a value, the next read is not compared.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from magnetar.admin.app import create_app
from magnetar.policies import registry
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

from .support import start_service, stop_service

GOLDEN = Path(__file__).parents[2] / "golden" / "policies" / "pulsar-4.2.4.json"
POLICIES = json.loads(GOLDEN.read_text())
BY_PATH = {
    at.path.rpartition("/")[2]: policy
    for policy in registry.POLICIES
    for at in (policy.namespace, policy.topic)
    if at is not None
}
QUOTA_BYTES = 10 << 30
"""`backlogQuotaDefaultLimitGB` of the standalone whose answers were recorded."""
JSON = {"content-type": "application/json"}

STRICTER = {
    "null": "null is no number and no boolean; Pulsar makes it 0 or false",
    "1.5": "no whole number; Pulsar cuts the fraction off",
    '{"retentionTimeInMinutes": 1.5, "retentionSizeInMB": 1}': "the same",
    "{}": "a record without its fields; Pulsar makes them 0, false or null",
    '{"retentionTimeInMinutes": 5}': "one of its fields is missing",
    '{"deleteWhileInactive": false}': "the same",
    '{"tickTime": 5}': "the same",
    "-2": "less than -1, which means no limit",
    '{"limitSize": -5, "policy": "producer_exception"}': "the same",
    '{"limitTime": -5, "policy": "producer_exception"}': "the same",
    '{"limitTime": 60, "policy": "consumer_backlog_eviction"}': "a size has no time",
    '"NOPE"': "no such word; Pulsar takes it for none given",
    '"backward"': "the same: words are written in capitals",
    '"prefix"': "the same",
    "5": "a number is no word",
    '""': "a name of no letters",
    '"a b"': "a name with a blank",
    '["standalone"]': "global replication, where Pulsar wants a namespace that is replicated",
}
STRICTER_PARTS = {
    '"maxInactiveDurationSeconds": 0': "a topic that is deleted as soon as it is idle",
    '"maxInactiveDurationSeconds": -1': "the same",
    '"inactiveTopicDeleteMode": "x"': "no such mode",
    ": -5": "less than -1, which means no limit",
    '"other": 1': "an unknown field; Pulsar ignores it",
    '"ratePeriodInSecond": 0': "a rate over no time",
    '"ratePeriodInSecond": -1': "the same",
    '"tickTime": -1': "a negative time",
    '"maxDeliveryDelayInMillis": -1': "the same",
}
MORE_LENIENT = {
    '{"managedLedgerOffloadDriver": "aws-s3"}': "the bucket may be the broker's",
    '{"managedLedgerOffloadDriver": "S3"}': "the same",
    '{"allowAutoTopicCreation": true}': "the type is `non-partitioned` where none is given",
}
FILLED = ("tickTime", "ratePeriodInSecond")
NOT_APPLIED = {
    "persistence": "a cursor's marks are not stored at a rate",
}
"""Policies with another default."""


@pytest.mark.parametrize("each", POLICIES, ids=lambda each: f"{each['level']}-{each['name']}")
async def test_as_pulsar(each: Mapping[str, Any]) -> None:
    service = await start_service(compose(BrokerSettings, backlog_quota_bytes=QUOTA_BYTES))
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://broker") as http:
        replay = Replay(each["level"], each["name"], http)
        if each["level"] == "topic":
            assert (await http.put(replay.bases["it"])).status_code == 204
        for step in each["steps"]:
            await replay.step(*step)
    await stop_service(service)


class Replay:
    """The requests of a policy."""

    def __init__(self, level: str, name: str, http: httpx.AsyncClient) -> None:
        self.level, self.name, self.http = level, name, http
        topic = level == "topic"
        self.bases = {
            "it": "/admin/v2/" + ("persistent/t1/n1/x" if topic else "namespaces/t1/n1"),
            "missing": "/admin/v2/" + ("persistent/t1/n1/nope" if topic else "namespaces/t1/nope"),
            "no namespace": "/admin/v2/persistent/t1/nope/x",
        }
        self.comparable = True
        self.has_global = False

    async def step(
        self, where: str, method: str, suffix: str, body: str | None, status: int, answer: Any
    ) -> None:
        response = await self.http.request(
            method,
            f"{self.bases[where]}/{suffix}",
            content=body or "",
            headers=JSON if body else {},
        )
        given = answer_of(response)
        said = f"{method} {suffix} {body or ''}: {response.status_code} {given}"
        assert response.status_code < 500, said
        if method == "GET":
            if where != "it":
                assert (response.status_code, bool(given["reason"])) == (404, True), said
            elif self.comparable:
                self.check_answer(suffix, status, answer, response.status_code, given, said)
            return
        self.comparable = (response.status_code < 300) == (status < 300)
        if body is None and method != "DELETE" and status < 300 and self.level == "topic":
            self.comparable = False  # Pulsar: some policies are removed, others do not change
        if body == "null" and self.level == "topic":
            self.comparable = False
        self.has_global |= "isGlobal" in suffix
        if response.status_code != status:
            assert self.why(where, method, suffix, body, status, response.status_code), (
                f"{said}; Pulsar: {status} {answer}"
            )

    def why(
        self, where: str, method: str, suffix: str, body: str | None, status: int, ours: int
    ) -> str:
        """Returns why the status differs; empty if it must not."""
        if where != "it":
            return "what is not there is not there" if ours == 404 else ""
        if method == "DELETE":
            return (
                "every policy can be removed" if ours == 204 and status in (404, 405, 412) else ""
            )
        if ours >= 400:
            if status >= 400:
                return "refused, with another status" if ours in (400, 412) else ""
            if body is None:
                return "nothing to set" if ours == 400 else ""
            if ours == 405 and BY_PATH[self.name].limitation is not None:
                return "refused, as nothing acts on it"
            if ours == 405 and self.name == "subscriptionAuthMode":
                return "refused, as this broker knows no roles"
            if ours == 405 and self.name == "bookieAffinity":
                return "refused, as a standalone has one bookie"
            return STRICTER.get(body, "") or next(
                (why for part, why in STRICTER_PARTS.items() if part in body), ""
            )
        if "isGlobal" in suffix and self.name in ("retention", "replication"):
            return "checked with the policies that hold, not with the broker's default"
        if '"defaultNumPartitions": 3' in (body or "") or "9223372036854775807" in (body or ""):
            return "kept, and of no effect"
        return MORE_LENIENT.get(body or "", "" if body != "{}" else "a driver is not asked for")

    def check_answer(
        self, suffix: str, status: int, answer: Any, ours: int, given: Any, said: str
    ) -> None:
        context = f"{said}; Pulsar: {status} {answer}"
        if "applied=true" in suffix:
            # Magnetar shows the value in force of all policies, also of namespaces. It includes
            # the value for all clusters.
            if isinstance(answer, dict):
                # A message's age: Pulsar also shows the bytes of the default quota.
                answer.pop("message_age", None)
            ignored = self.level == "namespace" or self.has_global or answer in (None, "…")
            if not ignored and self.name not in NOT_APPLIED:
                assert ours == 200, context
                assert same(given, answer), context
            return
        if answer == "…" or self.name in ("antiAffinity", "bookieAffinity"):
            return  # truncated, or in another document, which may not exist
        if "isGlobal" in suffix and self.name.startswith("schema"):
            return  # Pulsar has no such value for these
        if self.name == "subscriptionTypesEnabled" and answer is None:
            # Pulsar has no body until the topic has any policy.
            status, answer = 200, []
        assert ours == status, context
        assert same(given, answer), context


def answer_of(response: httpx.Response) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        return response.text


def same(given: Any, answer: Any) -> bool:
    """Whether both values mean the same: 0 and -1 are both "no limit"; we omit unknown fields.

    A field that a record lacks has our default, while Pulsar sets it to 0 (FILLED).
    """
    if isinstance(answer, dict) and isinstance(given, dict):
        return all(
            same(given[key], value)
            or (isinstance(value, int | float) and value <= 0 and given[key] <= 0)
            or (key in FILLED and value == 0)
            for key, value in answer.items()
            if key in given
        )
    if isinstance(answer, list) and isinstance(given, list):
        return sorted(answer) == sorted(given)
    return bool(given == answer)
