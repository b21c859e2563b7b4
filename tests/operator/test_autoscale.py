"""Figures for autoscalers: pressure, their questions, and when full disks require a bookie."""

import asyncio
from collections.abc import Callable, Coroutine

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar_operator.admin.client import ATTEMPTS_MAX, AdminClients
from magnetar_operator.autoscale import hpa
from magnetar_operator.autoscale.bookies import Disk, advise
from magnetar_operator.autoscale.figures import FRESH_S, Figures, NoFigure
from magnetar_operator.autoscale.metrics import (
    FRESH_S_DEFAULT,
    KEEPS_UP_S,
    NAMES,
    PRESSURE_PERCENT_MAX,
    DrainFigures,
    MetricRefused,
    parse_question,
    pressure_percent,
    quantity,
)
from magnetar_operator.models.cluster import Autoscaling, BacklogTarget, Bookie, DiskScaleUp

GIB = 1 << 30


def figures(backlog: int, into: float, out: float) -> DrainFigures:
    return DrainFigures(
        [],
        backlog_entries=1,
        backlog_bytes=backlog,
        wanted_bytes=backlog,
        wanted_bytes_per_second_in=into,
        wanted_bytes_per_second_out=out,
    )


@given(st.integers(1, 10**12), st.floats(0, 1e9), st.floats(1, 1e9), st.integers(1, 3600))
def test_pressure_is_the_share_of_brokers_that_is_missing(
    backlog: int, into: float, out: float, drain_s: int
) -> None:
    pressure = pressure_percent(figures(backlog, into, out), drain_s)
    if backlog <= out * KEEPS_UP_S:
        assert pressure == 0, "messages on their way"
        return
    assert 0 < pressure <= PRESSURE_PERCENT_MAX
    if pressure < PRESSURE_PERCENT_MAX:
        # At this multiple of the read rate, the backlog is drained in that time.
        faster = out * pressure / 100
        assert backlog + into * drain_s == pytest.approx(faster * drain_s, rel=1e-6)


def test_pressure_at_the_edges() -> None:
    assert pressure_percent(figures(0, 1e6, 0.0), 120) == 0.0
    assert pressure_percent(figures(1, 0.0, 0.0), 120) == PRESSURE_PERCENT_MAX


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (7, "7"), (1.5, "1500m"), (0.0004, "0"), (86_400.0, "86400")]
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("metric", "selector", "said"),
    [
        ("magnetar_nonsense", "cluster=a", "there is no metric magnetar_nonsense"),
        ("magnetar_backlog_bytes", "", "needs the labels cluster"),
        ("magnetar_backlog_bytes", "cluster in (a,b)", "only label=value"),
        ("magnetar_drain_pressure_percent", "cluster=a,timeToDrain=0", "must be 1 to"),
        ("magnetar_analytics_backlog_messages", "cluster=a,tenant=t", "needs the labels namespace"),
        (
            "magnetar_analytics_backlog_messages",
            "cluster=a,tenant=t,namespace=n,freshFor=soon",
            "freshFor=soon: must be 1 to",
        ),
        ("magnetar_subscription_backlog_bytes", "cluster=a,tenant=t,topic=x", "namespace, subscr"),
    ],
)
def test_bad_questions_get_an_error_that_names_the_remedy(
    metric: str, selector: str, said: str
) -> None:
    with pytest.raises(MetricRefused, match=said):
        parse_question(metric, "default", selector)


def test_the_autoscalers_questions_are_answered() -> None:
    autoscaling = Autoscaling(enabled=True, backlog=BacklogTarget(time_to_drain="5m"))
    cpu, external = hpa.metrics("demo", autoscaling)
    assert cpu["resource"]["target"]["averageUtilization"] == 70
    metric = external["external"]["metric"]
    assert metric["name"] in NAMES
    selector = ",".join(f"{k}={v}" for k, v in metric["selector"]["matchLabels"].items())
    question = parse_question(metric["name"], "default", selector)
    assert (question.cluster, question.drain_s) == ("demo", 300)
    only_cpu = Autoscaling(enabled=True, backlog=BacklogTarget(enabled=False))
    assert [item["type"] for item in hpa.metrics("demo", only_cpu)] == ["Resource"]


def told(
    answer: Callable[[httpx.Request], Coroutine[None, None, httpx.Response]],
) -> AdminClients:
    return AdminClients(transport=httpx.MockTransport(answer))


async def admin(_: str, cluster: str) -> str | None:
    return "http://admin" if cluster == "demo" else None


DRAIN = {
    "brokers": ["b"],
    "backlogEntries": 3, "backlogBytes": 600, "wantedBytes": 600, "wantedBytesPerSecondIn": 0.0,
    "wantedBytesPerSecondOut": 10.0, "timeToDrainSeconds": 60.0,
}  # fmt: skip


async def test_concurrent_requests_for_a_figure_share_one_read() -> None:
    requests: list[str] = []
    go = asyncio.Event()
    now = 0.0

    async def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request.url.path)
        await go.wait()
        return httpx.Response(200, json=DRAIN)

    figures_reader = Figures(admin, told(answer), lambda: now)
    question = parse_question("magnetar_time_to_drain_seconds", "default", "cluster=demo")
    waiting = [asyncio.create_task(figures_reader.value(question)) for _ in range(10)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [60.0] * 9
    now = FRESH_S - 0.1
    assert await figures_reader.value(question) == 60.0
    assert len(requests) == 1
    now = FRESH_S
    assert await figures_reader.value(question) == 60.0
    assert len(requests) == 2
    await figures_reader.close()


async def test_an_analysis_is_served_while_it_is_fresh() -> None:
    """Old, unknown and absent figures are none: an autoscaler then leaves things as they are."""
    asked_for: list[str] = []
    found: dict[str, object] = {"atMs": 1_000_000, "backlogMessages": 70, "oldestAgeSeconds": 12.5,
                                "drainsInSeconds": None, "version": 1, "worst": []}  # fmt: skip
    wall = 1_000.0

    async def answer(request: httpx.Request) -> httpx.Response:
        asked_for.append(request.url.path)
        if "/none" in request.url.path:
            return httpx.Response(404, json={"reason": "There is no backlog analysis"})
        return httpx.Response(200, json=found)

    figures_reader = Figures(admin, told(answer), lambda: 0.0, lambda: wall)

    async def value(name: str, more: str = "", namespace: str = "shop") -> float:
        selector = f"cluster=demo,tenant=acme,namespace={namespace}{more}"
        return await figures_reader.value(
            parse_question(f"magnetar_analytics_backlog_{name}", "default", selector)
        )

    assert await value("messages") == 70
    assert await value("oldest_unacked_age_seconds") == 12.5
    assert asked_for == ["/admin/v2/magnetar/analytics/backlog/acme/shop"]
    with pytest.raises(NoFigure, match="has no magnetar_analytics_backlog_time_to_drain"):
        await value("time_to_drain_seconds")
    wall += 600
    assert await value("messages") == 70
    with pytest.raises(NoFigure, match="analyzed acme/shop 600 s ago"):
        await value("messages", ",freshFor=599")
    wall += FRESH_S_DEFAULT
    with pytest.raises(NoFigure, match="4200 s ago"):
        await value("messages")
    with pytest.raises(NoFigure, match="404"):
        await value("messages", namespace="none")
    await figures_reader.close()


async def test_a_missing_figure_is_an_error_and_is_requested_again() -> None:
    codes = iter([503] * ATTEMPTS_MAX + [200])

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(next(codes), json=DRAIN)

    figures_reader = Figures(admin, told(answer))
    question = parse_question("magnetar_backlog_bytes", "default", "cluster=demo")
    with pytest.raises(NoFigure, match="503"):
        await figures_reader.value(question)
    assert await figures_reader.value(question) == 600
    with pytest.raises(NoFigure, match="no MagnetarCluster default/other"):
        await figures_reader.value(
            parse_question("magnetar_backlog_bytes", "default", "cluster=other")
        )
    await figures_reader.close()


async def test_figures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_operator.autoscale.figures.CACHED_MAX", 2)

    async def everywhere(_: str, __: str) -> str | None:
        return "http://admin"

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=DRAIN)

    now = 0.0
    figures_reader = Figures(everywhere, told(answer), lambda: now)
    for name in ("a", "b"):
        await figures_reader.value(
            parse_question("magnetar_backlog_bytes", "default", f"cluster={name}")
        )
    with pytest.raises(NoFigure, match="try again"):
        await figures_reader.value(parse_question("magnetar_backlog_bytes", "default", "cluster=c"))
    now = FRESH_S
    assert (
        await figures_reader.value(parse_question("magnetar_backlog_bytes", "default", "cluster=c"))
        == 600
    )
    await figures_reader.close()


async def test_a_subscription_of_a_partitioned_topic_counts_as_a_whole() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/partitions"):
            return httpx.Response(200, json={"partitions": 4})
        assert request.url.path.endswith("/persistent/t/n/orders/partitioned-stats")
        return httpx.Response(
            200, json={"subscriptions": {"work": {"msgBacklog": 12, "backlogSize": 9000}}}
        )

    figures_reader = Figures(admin, told(answer))
    labels = "cluster=demo,tenant=t,namespace=n,topic=orders,subscription="
    name = "magnetar_subscription_backlog_entries"
    assert await figures_reader.value(parse_question(name, "default", labels + "work")) == 12
    with pytest.raises(NoFigure, match="no subscription other"):
        await figures_reader.value(parse_question(name, "default", labels + "other"))
    await figures_reader.close()


def disks(*used: int, writable: bool = True) -> list[Disk]:
    return [
        Disk(f"demo-bookie-{at}", 100 * GIB, (100 - percent) * GIB, writable)
        for at, percent in enumerate(used)
    ]


CONSENT = Bookie(scale_up=DiskScaleUp(enabled=True, disk_percent=75, max_replicas=4))


def test_without_consent_a_bookie_is_only_recommended() -> None:
    advice = advise(Bookie(), 3, disks(80, 78, 76), 1e9, 1800)
    assert advice.bookies == 3
    assert advice.recommendations[0][0] == "AddBookie"
    assert "raise bookie.replicas to 4" in advice.recommendations[0][1]


def test_with_consent_one_is_added_at_a_time() -> None:
    assert advise(CONSENT, 3, disks(80, 78, 76), 1e9, 1800).bookies == 4
    assert advise(CONSENT, 3, disks(80, 78, 76), 60, 1800).bookies == 3, "so soon after the last"
    assert advise(CONSENT, 4, disks(80, 78, 76), 1e9, 1800).bookies == 4, "the most there may be"
    three_of_four = Bookie(scale_up=DiskScaleUp(enabled=True, max_replicas=9))
    assert advise(three_of_four, 4, disks(80, 78, 76), 1e9, 1800).bookies == 4, "one is not known"


@given(st.lists(st.integers(0, 100), max_size=8), st.booleans())
def test_nothing_is_ever_removed(used: list[int], writable: bool) -> None:
    advice = advise(CONSENT, 3, disks(*used, writable=writable), 1e9, 0)
    assert advice.bookies in (3, 4)


def test_a_single_full_disk_is_a_problem_of_its_volume() -> None:
    advice = advise(CONSENT, 3, disks(90, 20, 20), 1e9, 0)
    assert advice.bookies == 3
    assert [kind for kind, _ in advice.recommendations] == ["GrowVolume"]
