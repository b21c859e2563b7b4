"""The chart's Job: issues once, rotates over several runs, and restarts etcd only when it must."""

import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.memory_kube import MemoryKube

from magnetar_operator.cluster.manifests.security import TRUST_DIGEST
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.kinds import CONFIG_MAP, SECRET, STATEFUL_SET, Object
from magnetar_operator.security.job import SecretsJob, cluster_in
from magnetar_operator.security.stored import data_of
from magnetar_operator.security.wanted import ROTATE

ENVIRONMENT = {
    "MAGNETAR_SECRETS_CLUSTER": "demo",
    "MAGNETAR_SECRETS_NAMESPACE": "ns",
    "MAGNETAR_SECRETS_SPEC": json.dumps(
        {"tls": {"enabled": True}, "auth": {"authentication": {"enabled": True}}}
    ),
}
SETTLED = datetime.timedelta(minutes=16)


class Runs:
    """Runs of the Job, at times that the test sets."""

    def __init__(self, kube: MemoryKube, client: KubeClient) -> None:
        self.kube = kube
        self._client = client
        self.now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def monotonic(self) -> float:
        return self.now.timestamp()

    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1_000)

    async def run(self) -> None:
        issuance = await SecretsJob(self._client, cluster_in(ENVIRONMENT), self).run()
        assert issuance.problems == ()

    def etcd(self) -> Object:
        return self.kube.get(STATEFUL_SET, "demo-etcd")

    def trust(self) -> str:
        metadata = self.etcd()["spec"]["template"].get("metadata", {})
        return str(metadata.get("annotations", {}).get(TRUST_DIGEST, ""))

    def roll(self, *, done: bool = True) -> None:
        """Plays the StatefulSet's controller."""
        stored = self.etcd()
        updated = 3 if done else 2
        status: dict[str, Any] = {"updatedReplicas": updated, "readyReplicas": 3}
        status["observedGeneration"] = stored["metadata"]["generation"]
        self.kube.put({**stored, "status": status})

    def field(self, secret: str, name: str) -> bytes:
        return data_of(self.kube.get(SECRET, secret), name)

    def rotate(self, secret: str) -> None:
        stored = self.kube.get(SECRET, secret)
        annotations = {**(stored["metadata"].get("annotations") or {}), ROTATE: "true"}
        self.kube.put({**stored, "metadata": {**stored["metadata"], "annotations": annotations}})


@pytest.fixture
async def on() -> AsyncIterator[Runs]:
    kube = MemoryKube()
    client = kube.client()
    yield Runs(kube, client)
    await client.close()


def create_etcd(on: Runs) -> None:
    on.kube.put(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "demo-etcd", "namespace": "ns"},
            "spec": {"replicas": 3, "template": {"metadata": {"labels": {"app": "x"}}}},
        }
    )
    on.roll()


async def test_a_run_issues_all_and_the_next_writes_nothing(on: Runs) -> None:
    await on.run()
    assert on.field("demo-tls-broker", "tls.crt")
    assert on.field("demo-token-admin", "TOKEN")
    trust = on.kube.get(CONFIG_MAP, "demo-ca")["data"]["ca.crt"]
    assert trust.encode() == on.field("demo-ca-tls", "ca.crt")
    create_etcd(on)
    on.kube.asked.clear()
    await on.run()
    assert [request.path for request in on.kube.writes if "/secrets" in request.path] == []
    assert on.trust() == "", "etcd was created with these authorities: no restart"


async def test_an_authority_is_replaced_over_three_runs(on: Runs) -> None:
    await on.run()
    create_etcd(on)
    first = on.field("demo-ca-tls", "tls.crt")
    on.rotate("demo-ca-tls")
    await on.run()
    assert on.field("demo-ca-tls", "tls.crt") == first
    assert on.field("demo-tls-etcd", "ca.crt").count(b"BEGIN") == 2
    announced = on.trust()
    assert announced, "etcd restarts once its Secret has both"
    on.roll(done=False)
    on.now += SETTLED
    await on.run()
    assert on.field("demo-ca-tls", "tls.crt") == first, "one member has the old authorities"
    on.roll()
    await on.run()
    second = on.field("demo-ca-tls", "tls.crt")
    assert second != first
    assert on.trust() == announced, "the same authorities in another order: no restart"
    on.roll()
    on.now += SETTLED
    await on.run()
    assert on.field("demo-tls-broker", "ca.crt") == second
    assert on.trust() not in ("", announced)


async def test_another_writer_is_not_overwritten(on: Runs) -> None:
    """Two runs at once: the second one takes what the first one wrote."""
    await on.run()
    key = on.field("demo-ca-tls", "tls.key")
    await on.run()
    assert on.field("demo-ca-tls", "tls.key") == key
