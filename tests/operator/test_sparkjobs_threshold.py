"""SparkJobs that run when brokers report topics that wait for a job."""

import datetime
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.memory_kube import MemoryKube, Refusal
from tests.operator.sparkjob_stage import NAME, Stage

from magnetar.documents.due_jobs import DueJobs, DueTopic
from magnetar_operator.kube.client import Unreachable
from magnetar_operator.kube.kinds import BATCH_JOB
from magnetar_operator.models.sparkjob import FAILED_PAUSE_FACTOR, Selection
from magnetar_operator.sparkjobs.plan import SOON_S
from magnetar_operator.sparkjobs.threshold import POLL_S, TOPICS_SHOWN_MAX, selected

COMPACT: dict[str, Any] = {"type": "Compact", "onThreshold": {"pause": "10m"}}
CREATED = "persistent://shop/orders/created"
LARGE = {"topic": CREATED, "reason": "too large", "bytes": 1 << 31}
MINUTE = datetime.timedelta(minutes=1)


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr("magnetar_operator.kube.client.BACKOFF_FIRST_S", 0.0)
    kube = MemoryKube()
    client = kube.client()
    stage = Stage(kube, client)
    stage.cluster()
    yield stage
    await stage.clients.close()
    await client.close()


def names(on: Stage) -> list[str]:
    return sorted(job["metadata"]["name"] for job in on.kube.all_of(BATCH_JOB))


async def settled(on: Stage) -> None:
    while (await on.look() or POLL_S) < POLL_S:
        pass


async def test_a_topic_that_waits_starts_one_run_and_nothing_else_does(on: Stage) -> None:
    on.apply(COMPACT)
    await settled(on)
    assert names(on) == []
    assert on.asked[0] == "http://m-broker.ns.svc:8080/admin/v2/magnetar/jobs"
    ready = on.condition()
    assert (ready["status"], ready["reason"]) == ("True", "Watching")
    assert ready["message"] == "no topic waits for a job"
    assert on.status()["phase"] == "Watching"
    assert await on.look() == POLL_S
    on.waiting = {"compact": [LARGE], "offload": []}
    await settled(on)
    (first,) = names(on)
    (started,) = on.events("RunStarted")
    assert f"1 waiting: {CREATED} (too large)" in started["note"]
    await settled(on)
    assert names(on) == [first], "one at a time"
    assert "lastRequest" not in on.status(), "it is no request by annotation"


async def test_the_next_run_starts_after_a_pause_that_is_longer_after_a_failure(
    on: Stage,
) -> None:
    on.waiting = {"compact": [LARGE]}
    on.apply(COMPACT)
    await settled(on)
    (first,) = on.kube.all_of(BATCH_JOB)
    on.end(first, {"state": "failed", "error": "no store"}, failed=True)
    ended = on.now - MINUTE
    await settled(on)
    assert len(on.events("RunFailed")) == 1
    ready = on.condition()
    assert (ready["status"], ready["reason"]) == ("False", "RunFailed")
    assert "no store" in ready["message"]
    assert "the next run starts 3600 s after 2026-01-01T11:59:00Z" in ready["message"]
    on.now = ended + 10 * FAILED_PAUSE_FACTOR * MINUTE - datetime.timedelta(seconds=1)
    await settled(on)
    assert len(names(on)) == 1
    on.now = ended + 10 * FAILED_PAUSE_FACTOR * MINUTE
    await settled(on)
    assert len(names(on)) == 2
    (second,) = [
        job for job in on.kube.all_of(BATCH_JOB)
        if job["metadata"]["name"] != first["metadata"]["name"]
    ]  # fmt: skip
    on.end(second, {"state": "succeeded"})
    on.now += 8 * MINUTE
    await settled(on)
    assert len(names(on)) == 2
    on.now += MINUTE
    await settled(on)
    assert len(names(on)) == 3, "it still waits"


async def test_a_run_whose_start_was_not_recorded_is_not_started_again(on: Stage) -> None:
    """The operator is killed between the creation of the Job and the status."""
    on.waiting = {"compact": [LARGE]}
    on.apply(COMPACT)

    def no_status(asked: Any) -> Refusal | None:
        is_status = asked.path.endswith(f"/sparkjobs/{NAME}/status")
        return Refusal(503, "ServiceUnavailable") if is_status else None

    on.kube.refuse = no_status
    with pytest.raises(Unreachable):
        await on.look()
    (first,) = on.kube.all_of(BATCH_JOB)
    on.end(first, {"state": "succeeded"})
    on.now += 20 * MINUTE
    on.kube.refuse = lambda _: None
    assert "lastThresholdRun" not in on.status()
    await on.look()
    assert on.status()["lastThresholdRun"]
    assert len(names(on)) == 1
    await settled(on)
    assert len(names(on)) == 2, "the pause is over, and the topic waits"


async def test_without_an_answer_nothing_starts_and_the_status_says_why(on: Stage) -> None:
    on.apply(COMPACT)
    on.broken = True
    await settled(on)
    ready = on.condition()
    assert (ready["status"], ready["reason"]) == ("False", "DemandUnknown")
    assert "a broker does not answer" in ready["message"]
    on.broken, on.waiting = False, {"compact": "many"}
    await settled(on)
    assert "Expected `array`" in on.condition()["message"]
    assert names(on) == []


async def test_a_suspended_job_asks_nothing_and_an_annotation_still_starts_a_run(
    on: Stage,
) -> None:
    on.waiting = {"compact": [LARGE]}
    on.apply({**COMPACT, "suspend": True})
    await settled(on)
    assert (names(on), on.asked) == ([], [])
    on.waiting = {}
    on.apply(COMPACT, run="1")
    await settled(on)
    assert len(names(on)) == 1
    assert on.status()["lastRequest"] == "1"
    on.waiting = {"compact": [LARGE]}
    on.end(on.job(), {"state": "succeeded"})
    on.now += 20 * MINUTE
    await settled(on)
    assert len(names(on)) == 2
    assert on.status()["lastRequest"] == "1", "or the annotation would start another run"


async def test_a_closed_cluster_of_another_namespace_is_not_asked(on: Stage) -> None:
    far = on.cluster("far", namespace="far")
    on.kube.put({**far, "spec": {"auth": {"authentication": {"enabled": True}}}})
    on.apply({**COMPACT, "clusterRef": {"name": "far", "namespace": "far"}})
    await on.look()
    assert on.condition()["reason"] == "InvalidSpec"
    assert on.asked == []


NAMED = st.sampled_from(
    [CREATED, f"{CREATED}-partition-3", "persistent://shop/carts/a", "persistent://a/b/c"]
)


@given(
    st.lists(NAMED, unique=True), st.sets(NAMED), st.sets(st.sampled_from(["shop/orders", "a/b"]))
)
def test_a_run_is_started_only_by_topics_of_the_selection(
    waiting: list[str], topics: set[str], namespaces: set[str]
) -> None:
    selection = Selection(topics=sorted(topics), namespaces=sorted(namespaces))
    due = DueJobs(offload=tuple(DueTopic(name, "why") for name in waiting))
    chosen = {item.topic for item in selected(due, "Offload", selection)}
    assert selected(due, "Compact", selection) == []
    for name in waiting:
        inside = any(name.startswith(f"persistent://{space}/") for space in namespaces)
        whole = name.removesuffix("-partition-3")
        everything = not topics and not namespaces
        assert (name in chosen) is (everything or inside or name in topics or whole in topics)


async def test_many_topics_are_counted_and_few_are_named(on: Stage) -> None:
    topics = [f"persistent://a/b/t{number}" for number in range(TOPICS_SHOWN_MAX + 4)]
    on.waiting = {"offload": [{"topic": name, "reason": "r"} for name in topics]}
    on.apply({"type": "Offload", "onThreshold": {}})
    assert await on.look() == SOON_S
    (started,) = on.events("RunStarted")
    assert f"{len(topics)} waiting: {topics[0]} (r)" in started["note"]
    assert "and 4 more" in started["note"]
    assert topics[TOPICS_SHOWN_MAX] not in started["note"]


async def test_a_pause_longer_than_dates_reach_is_a_pause(on: Stage) -> None:
    on.waiting = {"offload": [LARGE]}
    on.apply({"type": "Offload", "onThreshold": {"pause": "9999999999w"}})
    await settled(on)
    on.end(on.job(), {"state": "succeeded"})
    on.now += 1_000 * MINUTE
    await settled(on)
    assert len(names(on)) == 1
