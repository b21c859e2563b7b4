"""`magnetar plan` on a real standalone: its predictions come true; its exit codes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.operator.resource_rig import manifest, until
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.admin.view import Clusters
from magnetar_operator.catalog.act import CatalogExecutor
from magnetar_operator.catalog.effects import Effect, human_bytes, read
from magnetar_operator.catalog.observe import observe
from magnetar_operator.catalog.plan import plan
from magnetar_operator.catalog.references import parse_spec, target_of
from magnetar_operator.catalog.state import desired_of
from magnetar_operator.plan_manifests import (
    CHANGES,
    FAILED,
    LOSES_DATA,
    NOTHING,
    CannotPlan,
    Findings,
    PlanFiles,
    read_documents,
)

MESSAGES = 120
MESSAGE = b"x" * 65_536
ENVIRONMENT = {
    "MAGNETAR_LEDGER_ENTRIES_MAX": "10",
    "MAGNETAR_LEDGER_ROLLOVER_MIN_MINUTES": "0",
    "MAGNETAR_RETENTION_CHECK_INTERVAL_S": "1",
}
KEPT = {"time": "-1", "size": "-1"}
SETUP = [
    manifest("Tenant", "shop", {}),
    manifest("Namespace", "orders", {"tenant": "shop", "policies": {"retention": KEPT}}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = Path(tmp_path_factory.mktemp("standalone"))
    with ServerProcess(root, environment=ENVIRONMENT) as started:
        asyncio.run(apply(started.http_url, SETUP))
        yield started


async def apply(url: str, documents: list[dict[str, Any]]) -> None:
    """As the operator carries it out."""
    clients = AdminClients()
    clusters = Clusters(clients)
    resources = {(obj["kind"], obj["metadata"]["name"]): obj for obj in documents}
    for obj in documents:
        target = target_of(obj, lambda kind, name: resources.get((kind, name)))
        desired = desired_of(parse_spec(obj))
        view = clusters.at(url)
        observed = await observe(view, target, desired, None)
        planned = plan(target, desired, observed, None)
        outcome = await CatalogExecutor(view, target, desired, observed).carry_out(planned.steps)
        assert not outcome.failed
        again = plan(target, desired, await observe(view, target, desired, None), None)
        assert again.actions == ()
    await clients.close()


async def planned(url: str, documents: list[dict[str, Any]]) -> Findings:
    planning = PlanFiles(None, url)
    try:
        return await planning.run(documents)
    finally:
        await planning.close()


async def publish(server: ServerProcess, *topics: str) -> None:
    client = await RawClient.connect(server.host, server.port)
    for topic in topics:
        producer = await client.producer(f"persistent://shop/{topic}")
        for number in range(MESSAGES):
            client.send(producer, number, MESSAGE)
        await client.receipted(producer, MESSAGES)
    await client.close()


def stored(server: ServerProcess, topic: str) -> tuple[int, int]:
    """Ledgers and bytes."""
    base = f"{server.http_url}/admin/v2/persistent/shop/{topic}"
    ledgers = httpx.get(f"{base}/internalStats", trust_env=False).json()["ledgers"]
    size = httpx.get(f"{base}/stats", trust_env=False).json()["storageSize"]
    return len(ledgers), size


def command(*args: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    whole = [sys.executable, "-m", "magnetar.cli.main", "plan", *args]
    return subprocess.run(whole, input=stdin, capture_output=True, text=True, timeout=30)


async def test_the_predicted_loss_of_a_topic_is_the_actual_loss(server: ServerProcess) -> None:
    topic = manifest("Topic", "t", {"name": "shop/orders/t"})
    await apply(server.http_url, [topic])
    await publish(server, "orders/t")
    ledgers, size = stored(server, "orders/t")
    lower = {"policies": {"retention": {"time": "-1", "size": "2Mi"}, "maxProducersPerTopic": 9}}
    changed = manifest("Topic", "t", {"name": "shop/orders/t", **lower})
    new_plan = await planned(server.http_url, [*SETUP, changed])
    assert new_plan.code == LOSES_DATA
    first, second = new_plan.steps
    assert first["losesData"]
    assert not second["losesData"]
    assert 0 < first["bytes"] < size
    assert stored(server, "orders/t") == (ledgers, size)  # it was only a plan
    await apply(server.http_url, [changed])
    outcome = until("ledgers go", lambda: _smaller(server, "orders/t", size))
    assert size - outcome[1] == first["bytes"]
    assert f"({ledgers - outcome[0]} ledgers, " in first["text"]
    assert (await planned(server.http_url, [*SETUP, changed])).code == NOTHING


async def test_two_backlog_quotas_are_predicted_each_with_its_action(
    server: ServerProcess,
) -> None:
    where = {"name": "shop/orders/quotas"}
    topic = manifest("Topic", "quotas", where)
    read = manifest("Subscription", "late", {"topic": "persistent://shop/orders/quotas"})
    await apply(server.http_url, [topic, read])
    await publish(server, "orders/quotas")
    hold, evict = "producer_request_hold", "consumer_backlog_eviction"

    async def found(size_action: str, time_action: str) -> Findings:
        quota = {
            "destination_storage": {"size": "1Mi", "policy": size_action},
            "message_age": {"time": "7d", "policy": time_action},
        }
        changed = manifest("Topic", "quotas", {**where, "policies": {"backlogQuota": quota}})
        return await planned(server.http_url, [*SETUP, changed, read])

    losing = await found(evict, hold)
    assert losing.code == LOSES_DATA
    assert "expires" in losing.steps[0]["text"]
    blocking = await found(hold, evict)  # nothing is seven days old
    assert blocking.code == CHANGES
    assert "blocks producers" in " ".join(action["text"] for action in blocking.steps)


def _smaller(server: ServerProcess, topic: str, than: int) -> tuple[int, int] | None:
    stored_fields = stored(server, topic)
    return stored_fields if stored_fields[1] < than else None


async def test_the_predicted_loss_of_a_namespace_sums_its_topics(server: ServerProcess) -> None:
    kept = {"name": "shop/many", "policies": {"retention": KEPT}}
    await apply(server.http_url, [manifest("Namespace", "many", kept)])
    names = ["many/a", "many/b", "many/empty"]
    await apply(server.http_url, [manifest("Topic", n[5:], {"name": f"shop/{n}"}) for n in names])
    await publish(server, "many/a", "many/b")
    before = [stored(server, name) for name in names]
    lower = {"name": "shop/many", "policies": {"retention": {"time": "0", "size": "0"}}}
    changed = manifest("Namespace", "many", lower)
    (step,) = (await planned(server.http_url, [changed])).steps
    assert step["topics"] == 2
    assert "in 2 topics" in step["text"]
    await apply(server.http_url, [changed])

    def done() -> bool:
        sizes = [stored(server, name)[1] for name in names]
        return bool(sum(size for _, size in before) - sum(sizes) == step["bytes"])

    until("as much is deleted as was foreseen", done)


def test_the_commands_output_and_exit_codes(server: ServerProcess, tmp_path: Path) -> None:
    url = ("--admin-url", server.http_url)
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([*SETUP, {"apiVersion": "v1", "kind": "ConfigMap"}]))
    same = command("-f", str(file), *url)
    assert (same.returncode, same.stdout) == (
        NOTHING,
        "Nothing to do: 2 resources as specified.\n",
    )
    new = yaml.safe_dump_all([*SETUP, manifest("Topic", "x", {"name": "shop/new/x"})])
    changes = command("-f", "-", *url, "--json", stdin=new)
    assert changes.returncode == CHANGES
    first, second = json.loads(changes.stdout)["steps"]
    assert first["text"] == "create topic persistent://shop/new/x"
    assert "inactiveTopicPolicies: not set → " in second["text"]
    bad = yaml.safe_dump(manifest("Topic", "x", {"name": "shop/new/x", "partitions": -1}))
    failed = command("-f", "-", *url, stdin=bad)
    assert failed.returncode == FAILED
    assert "Topic default/x: spec: " in failed.stderr
    nobody = command("-f", str(file), "--admin-url", "http://127.0.0.1:9")
    assert nobody.returncode == FAILED
    assert "cannot be reached" in nobody.stderr


def test_documents_are_read_from_files_folders_and_lists(tmp_path: Path) -> None:
    inner = {"apiVersion": "v1", "kind": "List", "items": [SETUP[0]]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(inner))
    (tmp_path / "b.json").write_text(json.dumps(SETUP[1]))
    (tmp_path / "c.txt").write_text("not read")
    assert [manifest["kind"] for manifest in read_documents([str(tmp_path)])] == [
        "Tenant",
        "Namespace",
    ]
    with pytest.raises(CannotPlan, match="without a known kind"):
        read_documents(["-"], "apiVersion: magnetar.io/v1alpha1\nkind: Topik\n")
    with pytest.raises(CannotPlan, match="nowhere"):
        read_documents([str(tmp_path / "nowhere")])


def test_effects_are_described_in_words() -> None:
    effects = read(
        {
            "deletes": {"bytes": 83_000_000_000, "ledgers": 3, "entries": 4_000},
            "expires": {"s": 2},
            "topics_affected": 12,
            "estimated": True,
        }
    )
    assert effects.text == (
        "deletes 83 GB in 12 topics (3 ledgers, 4,000 entries), "
        "expires 2 entries of subscriptions (estimated)"
    )
    assert Effect().text == "deletes nothing now"
    assert not Effect().loses
    assert Effect(is_certain=False).loses
    assert [human_bytes(size) for size in (1, 999, 1_500, 10**13)] == [
        "1 byte", "999 bytes", "1.5 kB", "10 TB",
    ]  # fmt: skip
