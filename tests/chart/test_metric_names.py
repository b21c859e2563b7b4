"""Dashboards and alerts ask for what there is: each name and label, held against running processes.

A broker, bookies and autorecovery of a real cluster under a little load, and the operator's own
page; what Prometheus adds to each series is what the chart's PodMonitors say.
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import kubernetes.client
import msgspec
import pulsar
import pytest
import yaml
from tests.support.cluster_processes import brokers, get, running_cluster, wait_for
from tests.support.transactional import TransactionalClient

from magnetar.core.clock import SystemClock
from magnetar.documents.backlog import BacklogRecord
from magnetar.managed_ledger.backlog_record import record_key
from magnetar.metadata.store_url import open_store
from magnetar_operator.engine.health import Health
from magnetar_operator.engine.queue import ReconcileQueue
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.sparkjobs import metrics as figures

pytestmark = pytest.mark.timeout(300)  # the first test starts a cluster

CHART = Path(__file__).resolve().parents[2] / "charts" / "magnetar"
LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")
SCRAPED = frozenset(("job", "instance", "kubernetes_namespace", "kubernetes_pod_name", "cluster"))
"""Labels that the PodMonitors add."""
WORDS = frozenset(
    ("and", "by", "increase", "max", "min", "or", "predict_linear", "rate", "sum", "time", "topk")
)
Labels = dict[str, set[str]]

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?")
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


def asked(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Names of metrics, each with the labels that are asked of it."""
    bare = STRING.sub('""', expression)
    grouped = {
        label.strip() for _, labels in GROUPING.findall(bare) for label in labels.split(",")
    } - {""}
    bare = re.sub(r"\[[^\]]*\]", "", GROUPING.sub(" ", bare))
    for name, matchers in SERIES.findall(bare):
        if name not in WORDS:
            yield name, grouped | set(re.findall(r"(\w+)\s*[=!]", matchers))


def test_the_reading_of_expressions() -> None:
    text = 'topk(10, a_b{c="x,y",d=~"$e"}) / sum by (f, g) (rate(h[$__rate_interval])) > 0.5'
    assert list(asked(text)) == [("a_b", {"c", "d", "f", "g"}), ("h", {"f", "g"})]


def series_of(page: str) -> Labels:
    """Names on a page, each with all labels that any of its series has."""
    found: Labels = defaultdict(set)
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{") if "{" in line else (*line.split(" ", 1), "")[:3]
            found[name.split(" ")[0]] |= set(re.findall(r'(\w+)="', rest if "{" in line else ""))
    return found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    """What a cluster with one topic, one slow consumer and a quota tells."""
    found: Labels = defaultdict(set)
    directory = tmp_path_factory.mktemp("metrics")
    with running_cluster(
        directory, bookies=2, brokers=1, backlog_quota_bytes=1_000_000_000, transactions=True
    ) as cluster:
        (broker,) = brokers(cluster)
        client = pulsar.Client(
            f"pulsar://{broker.address}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        try:
            consumer = client.subscribe("topic", "subscription")
            producer = client.create_producer("topic")
            for _ in range(10):
                producer.send(b"message")
            consumer.acknowledge(consumer.receive(30_000))
            status, _ = get(
                f"{broker.http_url}/admin/v3/transactions/coordinatorStats?coordinatorId=0"
            )
            assert status == 200  # the coordinator is served from now on
            asyncio.run(in_transaction(broker.host, broker.ports["port"]))
            asyncio.run(analysed(cluster.metadata_url))
            # Shown by who leads the brokers, and asked for now and then.
            shows = partial(has_series, broker.http_url, "magnetar_analytics_")
            wait_for(shows, "the analysis is shown", 90.0)
            for member in cluster.members:
                if "http" in member.ports:
                    status, page = get(f"{member.http_url}/metrics")
                    assert status == 200
                    for name, labels in series_of(page).items():
                        found[name] |= labels
        finally:
            client.close()
    found |= series_of(asyncio.run(operator_page()))
    return {**found, "up": set()}


async def in_transaction(host: str, port: int) -> None:
    """The topic has a message of a transaction."""
    topic = "persistent://public/default/topic"
    async with TransactionalClient((host, port)) as client:
        txn = await client.begin()
        await client.add(txn, topic)
        await client.send(topic, txn, b"message")


def has_series(http_url: str, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in series_of(get(f"{http_url}/metrics")[1]))


async def analysed(metadata_url: str) -> None:
    """As a run of the backlog job leaves it, with every figure known."""
    known_figures: dict[str, Any] = {
        each.name: 1
        for each in msgspec.structs.fields(BacklogRecord)
        if each.name not in ("worst", "findings")
    }
    store = await open_store(metadata_url, SystemClock())
    record = BacklogRecord(**known_figures)
    await store.put(record_key("public/default"), msgspec.json.encode(record))
    await store.close()


BEGAN, ENDED = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


async def operator_page() -> str:
    """The operator's metrics, without a cluster: one look, one failure, one request, one job."""
    kube = KubeClient(kubernetes.client.Configuration(host="http://127.0.0.1:9"))
    work = ReconcileQueue(1, 60.0)
    work.reconciles["Topic"] += 1
    work.failures["Topic"] += 1
    kube.requests["get", "magnetar.io", "topics"] += 1
    run = {"state": "Succeeded", "startedAt": BEGAN, "endedAt": ENDED, "result": {"topics": 1}}
    status = {"runs": [run], "lastSuccessAt": ENDED, "nextRunAt": ENDED}
    job = {"metadata": {"name": "j", "namespace": "n"}, "spec": {"type": "Offload"}}
    health = Health(kube, work, lambda: True, [lambda: figures.lines([{**job, "status": status}])])
    port = await health.start("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(timeout=30) as http:
            return (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    finally:
        await health.stop()
        await kube.close()


def expressions() -> Iterator[tuple[str, str, str]]:
    """Where from, the expression, its legend or text."""
    for path in sorted((CHART / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}", target["expr"], target["legendFormat"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                asked_for = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert asked_for, variable
                yield f"{path.stem}: {variable['name']}", asked_for[1], f"{{{{{asked_for[2]}}}}}"
    for group in yaml.safe_load((CHART / "alerts" / "magnetar.rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"{{\1}}", rule["annotations"]["summary"])
            yield rule["alert"], rule["expr"], text


def test_every_name_and_label_exists(known: Labels) -> None:
    wrong = []
    seen = 0
    for where, expression, legend in expressions():
        # Of a join, the labels of the one side are those of its left.
        left = expression.partition("group_left")[0]
        for name, labels in asked(expression):
            shown = set(LEGEND_LABEL.findall(legend)) if name in left else set()
            seen += 1
            if name not in known:
                wrong.append(f"{where}: there is no {name}")
            elif missing := (labels | shown) - known[name] - SCRAPED:
                wrong.append(f"{where}: {name} has no label {', '.join(sorted(missing))}")
    assert not wrong, "\n".join(wrong)
    assert seen > 100


def test_legends_show_what_the_expression_leaves(known: Labels) -> None:
    """After `sum by (a)` only `a` is there."""
    for where, expression, legend in expressions():
        left = re.match(r"\s*(?:sum|max|min)(?:\s+by\s*\(([^)]*)\))?\s*\(", expression)
        if left and not re.search(r"\)\s*[/*+-]", expression):
            kept = {label.strip() for label in (left[1] or "").split(",")}
            assert set(LEGEND_LABEL.findall(legend)) <= kept, where
