"""What the metrics API answers an autoscaler: its documents, and which figure of the brokers'."""

import asyncio
import datetime
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.autoscale.api import GROUP, ROOT, application
from magnetar_operator.autoscale.figures import FRESH_S, Figures, NoFigure
from magnetar_operator.autoscale.metrics import NAMES, parse_question

VALUES = f"{ROOT}/v1beta1/namespaces/default"
DRAIN = {
    "brokers": ["b"],
    "backlogEntries": 3, "backlogBytes": 800, "wantedBytes": 600, "wantedBytesPerSecondIn": 5.0,
    "wantedBytesPerSecondOut": 10.0, "timeToDrainSeconds": 60.5,
}  # fmt: skip
ANALYSIS = {"atMs": 1_000_000, "backlogMessages": 70, "oldestAgeSeconds": 12.5,
            "drainsInSeconds": 40.0}  # fmt: skip
STATS = {"subscriptions": {"work": {"msgBacklog": 12, "backlogSize": 9_000}}}
TOPIC = "/admin/v2/persistent/t/n/orders"


@dataclass
class Brokers:
    """The brokers of the cluster `demo` in any namespace; a test sets their answers."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.answers = {
            "/admin/v2/magnetar/drain": DRAIN,
            "/admin/v2/magnetar/analytics/backlog/t/n": ANALYSIS,
            f"{TOPIC}/partitions": {"partitions": 0},
            f"{TOPIC}/stats": STATS,
        }
        clients = AdminClients(transport=httpx.MockTransport(self._said))
        self.figures = Figures(self._url, clients, lambda: self.now, lambda: 1_000.0)

    async def value(self, metric: str, labels: str, namespace: str = "default") -> float:
        return await self.figures.value(parse_question(f"magnetar_{metric}", namespace, labels))

    async def _url(self, namespace: str, cluster: str) -> str | None:
        return f"http://{cluster}.{namespace}/" if cluster.startswith("demo") else None

    def _said(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        self.asked.append(f"{request.url.host} {path}")
        if path not in self.answers:
            return httpx.Response(404)
        return httpx.Response(200, json=self.answers[path])


@pytest.fixture
async def on() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    yield brokers
    await brokers.figures.close()


@pytest.fixture
async def http(on: Brokers) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application(on.figures))
    async with httpx.AsyncClient(transport=transport, base_url="http://operator") as client:
        yield client


# -- documents


async def test_the_aggregation_layer_finds_the_group_its_version_and_every_metric(
    http: httpx.AsyncClient,
) -> None:
    group = (await http.get(ROOT)).json()
    version = f"{GROUP}/v1beta1"
    assert (group["kind"], group["name"]) == ("APIGroup", GROUP)
    assert group["preferredVersion"]["groupVersion"] == version
    assert [version["groupVersion"] for version in group["versions"]] == [version]
    obj = (await http.get(f"{ROOT}/v1beta1")).json()
    assert (obj["kind"], obj["groupVersion"]) == ("APIResourceList", version)
    assert {resource["name"] for resource in obj["resources"]} == set(NAMES)
    assert all(
        resource["namespaced"] and resource["verbs"] == ["get"] for resource in obj["resources"]
    )


async def test_a_value_is_a_list_of_one_item_with_its_time(
    http: httpx.AsyncClient,
) -> None:
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    query = {"labelSelector": "cluster=demo,timeToDrain=30"}
    answer = await http.get(f"{VALUES}/magnetar_time_to_drain_seconds", params=query)
    assert answer.status_code == 200
    document = answer.json()
    assert document["kind"] == "ExternalMetricValueList"
    assert document["apiVersion"] == f"{GROUP}/v1beta1"
    (item,) = document["items"]
    at = datetime.datetime.fromisoformat(item.pop("timestamp"))
    assert before <= at <= datetime.datetime.now(datetime.UTC)
    assert item == {
        "metricName": "magnetar_time_to_drain_seconds",
        "metricLabels": {"cluster": "demo", "timeToDrain": "30"},
        "value": "60500m",
    }


@pytest.mark.parametrize(
    ("path", "query", "code", "reason", "said"),
    [
        (f"{VALUES}/magnetar_nonsense", "cluster=demo", 400, "BadRequest", "no metric magnetar_no"),
        (f"{VALUES}/magnetar_backlog_bytes", "", 400, "BadRequest", "labels cluster"),
        (
            f"{VALUES}/magnetar_backlog_bytes", "cluster=x", 503, "ServiceUnavailable",
            "no MagnetarCluster default/x",
        ),
        ("/openapi/v2", "", 404, "NotFound", "/openapi/v2 does not exist"),
    ],
)  # fmt: skip
async def test_failures_have_kubernetes_form(
    http: httpx.AsyncClient, path: str, query: str, code: int, reason: str, said: str
) -> None:
    answer = await http.get(path, params={"labelSelector": query} if query else {})
    document = answer.json()
    assert (answer.status_code, document["code"]) == (code, code)
    assert (document["kind"], document["status"]) == ("Status", "Failure")
    assert document["reason"] == reason
    assert said in document["message"]


# -- which figure


@pytest.mark.parametrize(
    ("metric", "labels", "value"),
    [
        # 5 bytes a second come, 600 wait for 30 s: 25 are to be read, and 10 are.
        ("drain_pressure_percent", ",timeToDrain=30", 250),
        ("drain_pressure_percent", "", 100),
        ("time_to_drain_seconds", "", 60.5),
        ("backlog_bytes", "", 800),
        ("backlog_entries", "", 3),
        ("subscription_backlog_entries", ",tenant=t,namespace=n,topic=orders,subscription=work",
         12),
        ("subscription_backlog_bytes", ",tenant=t,namespace=n,topic=orders,subscription=work",
         9_000),
        ("analytics_backlog_messages", ",tenant=t,namespace=n", 70),
        ("analytics_backlog_oldest_unacked_age_seconds", ",tenant=t,namespace=n", 12.5),
        ("analytics_backlog_time_to_drain_seconds", ",tenant=t,namespace=n", 40),
    ],
)  # fmt: skip
async def test_each_metric_has_its_figure(
    on: Brokers, metric: str, labels: str, value: float
) -> None:
    assert await on.value(metric, f"cluster=demo{labels}") == value


async def test_figures_of_different_targets_are_not_mixed(on: Brokers) -> None:
    """What is kept for a moment is kept by all that was asked."""
    await on.value("backlog_bytes", "cluster=demo")
    await on.value("backlog_entries", "cluster=demo")
    await on.value("backlog_bytes", "cluster=demo2")
    await on.value("backlog_bytes", "cluster=demo", "elsewhere")
    hosts = ["demo.default", "demo2.default", "demo.elsewhere"]
    assert on.asked == [f"{host} /admin/v2/magnetar/drain" for host in hosts]
    on.asked.clear()
    for path in ("t/n", "u/n", "t/m"):
        tenant, local = path.split("/")
        on.answers[f"/admin/v2/magnetar/analytics/backlog/{path}"] = ANALYSIS
        await on.value(
            "analytics_backlog_messages", f"cluster=demo,tenant={tenant},namespace={local}"
        )
    assert len(on.asked) == 3
    on.asked.clear()
    for tenant, local, topic in (("t", "n", "orders"), ("u", "n", "orders"), ("t", "m", "orders"),
                                 ("t", "n", "other")):  # fmt: skip
        base = f"/admin/v2/persistent/{tenant}/{local}/{topic}"
        on.answers |= {f"{base}/partitions": {}, f"{base}/stats": STATS}
        labels = f"cluster=demo,tenant={tenant},namespace={local},topic={topic},subscription=work"
        await on.value("subscription_backlog_entries", labels)
        await on.value("subscription_backlog_bytes", labels)
    assert len(on.asked) == 8, "how many partitions, and the stats, of each topic once"


async def test_an_unreadable_answer_is_no_figure(on: Brokers) -> None:
    on.answers["/admin/v2/magnetar/drain"] = {"backlogBytes": "many"}
    with pytest.raises(NoFigure, match="demo has no figures at /admin/v2/magnetar/drain"):
        await on.value("backlog_bytes", "cluster=demo")


async def test_running_requests_stay_cached_and_end_with_the_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long an answer takes: more of the same question wait for it."""
    monkeypatch.setattr("magnetar_operator.autoscale.figures.CACHED_MAX", 1)
    begun: list[str] = []
    begins, hangs = asyncio.Event(), asyncio.Event()
    now = 0.0

    async def answer(request: httpx.Request) -> httpx.Response:
        begun.append(request.url.host)
        begins.set()
        await hangs.wait()
        return httpx.Response(200, json=DRAIN)

    async def url(_: str, cluster: str) -> str | None:
        return f"http://{cluster}"

    clients = AdminClients(transport=httpx.MockTransport(answer))
    figures = Figures(url, clients, lambda: now)
    question = parse_question("magnetar_backlog_bytes", "default", "cluster=slow")
    waiting = asyncio.create_task(figures.value(question))
    await begins.wait()
    now = 10 * FRESH_S
    with pytest.raises(NoFigure, match="try again"):
        await figures.value(parse_question("magnetar_backlog_bytes", "default", "cluster=other"))
    again = asyncio.create_task(figures.value(question))
    await asyncio.sleep(0)
    assert begun == ["slow"]
    await figures.close()
    for task in (waiting, again):
        with pytest.raises(asyncio.CancelledError):
            await task
