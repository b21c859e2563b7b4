"""BacklogGrowing on a real API server, with a real operator and real brokers."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Final

import msgspec
import pytest
from kubernetes import client
from tests.operator.resource_rig import Live, operator, until
from tests.support.kube import Tool
from tests.support.rest_cluster import RestCluster

from magnetar.documents.backlog import BacklogRecord, Behind
from magnetar.managed_ledger.backlog_record import record_key
from magnetar_operator.admin import view

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("crds"), pytest.mark.timeout(240)]

TYPE: Final = "BacklogGrowing"
NAMESPACE: Final = "public/default"
TOPIC: Final = f"persistent://{NAMESPACE}/created"
CALL_S_MAX: Final = 60.0


class Brokers:
    """One broker, its loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brokers")
        self._thread.start()
        self.cluster = RestCluster()
        self.run(self.cluster.start(1))

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S_MAX)

    def analysed(self, *worst: Behind, seconds_ago: float = 0.0) -> None:
        """A run of the job ended."""
        trends = [row.trend for row in worst]
        backlog_record = BacklogRecord(
            at_ms=int((time.time() - seconds_ago) * 1000),
            behind=len(worst),
            growing=trends.count("growing"),
            stalled=trends.count("stalled"),
            unreadable=0,
            unknown=0,
            worst=[*worst],
        )
        self.run(self.cluster.store.put(record_key(NAMESPACE), msgspec.json.encode(backlog_record)))

    def stop(self) -> None:
        self.run(self.cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S_MAX)
        self._loop.close()


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    stub = Brokers()
    yield stub
    stub.stop()


@pytest.fixture
def live(
    kube_api: client.ApiClient,
    kubectl: Tool,
    kube_namespace: str,
    brokers: Brokers,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Live]:
    monkeypatch.setattr(view, "ANALYSIS_FRESH_S", 0.2)
    url = str(brokers.cluster.members[0].http.base_url)
    with (
        Live(kubectl.within(kube_namespace), url) as rig,
        operator(kube_namespace, resync_s=0.5) as acting,
    ):
        rig.requests = acting.context.kube.requests
        yield rig


def test_the_condition_follows_analyses_and_disappears_with_their_age(
    live: Live, brokers: Brokers
) -> None:
    live.apply("Topic", "created", {"name": f"{NAMESPACE}/created"})
    live.apply("Subscription", "audit", {"topicRef": {"name": "created"}})
    for kind, name in (("Topic", "created"), ("Subscription", "audit")):
        live.ready(kind, name)
        assert not live.condition(kind, name, TYPE), "no job ran"

    brokers.analysed(Behind(TOPIC, "audit", 1_200, 34_000, 60.0, "growing", 2.25))
    for kind, name in (("Topic", "created"), ("Subscription", "audit")):
        condition = live.until(kind, name, "Growing", TYPE)
        assert condition["status"] == "True"
        assert condition["message"].startswith(
            f"subscription audit of {TOPIC} grows: 1,200 entries, 34,000 bytes, +2.2 entries/s"
        )
        assert live.condition(kind, name)["status"] == "True", "it is ready as before"

    brokers.analysed(Behind(TOPIC, "audit", 900, 30_000, 60.0, "draining", -3.0))
    assert live.until("Subscription", "audit", "NotGrowing", TYPE)["status"] == "False"
    live.until("Topic", "created", "NotGrowing", TYPE)
    version = live.get("Topic", "created")["metadata"]["resourceVersion"]

    brokers.analysed(Behind(TOPIC, "audit", 800, 29_000, 61.0, "draining", -2.0))
    brokers.analysed(Behind(f"{TOPIC}-2", "x", 800, 29_000, 61.0, "growing", 2.0))
    live.apply("Topic", "created-2", {"name": f"{NAMESPACE}/created-2"})
    live.until("Topic", "created-2", "Growing", TYPE)
    assert live.get("Topic", "created")["metadata"]["resourceVersion"] == version

    brokers.analysed(Behind(TOPIC, "audit", 900, 3, 4.0, "stalled"), seconds_ago=7_201)
    until("too old to tell", lambda: not live.condition("Subscription", "audit", TYPE))
