"""The number of bundles of a new namespace, and splits of a bundle that the server chooses."""

import httpx
import pytest

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.catalog.defaults import ensure_defaults
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.ownership.bundles import ranges
from magnetar.core.hashing import bundle_hash
from magnetar.core.names import NamespaceName
from magnetar.metadata.memory import MemoryStore
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

from .support import Admin, start_service, stop_service

NO_HOT = (
    "Splitting the HOT bundle is not supported: choose LARGEST, or name the bundle that "
    "broker-stats topics shows with the highest rates"
)
NAMESPACE = "~/namespaces/t1/n2"


async def boundaries(admin: Admin) -> list[int]:
    shown = (await admin.done("GET", f"{NAMESPACE}/bundles")).json()["boundaries"]
    return [int(position, 16) for position in shown]


async def test_the_bundle_with_the_most_topics_is_split(admin: Admin) -> None:
    await admin.done("PUT", NAMESPACE, {"bundles": {"numBundles": 2}})
    high = [n for n in range(40) if bundle_hash(f"persistent://t1/n2/x{n}") >= 1 << 31]
    low = sorted({*range(40)} - {*high})
    for number in (*high[:3], *low[:2]):
        await admin.done("PUT", f"~/persistent/t1/n2/x{number}")
    await admin.done("PUT", f"{NAMESPACE}/LARGEST/split")
    assert await boundaries(admin) == [0, 0x80000000, 0xBFFFFFFF, 0xFFFFFFFF]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("~/namespaces/t1/n1/LARGEST/split", 404, "Bundle range LARGEST not found"),
        ("~/namespaces/t1/no/LARGEST/split", 404, "Namespace not found"),
        (
            *("~/namespaces/t1/n1/HOT/split", 405),
            NO_HOT,
        ),
    ],
)
async def test_refused_choices(admin: Admin, path: str, status: int, reason: str) -> None:
    answer = await admin.call("PUT", path)
    assert (answer.status_code, answer.json()) == (status, {"reason": reason})


async def test_namespaces_get_the_number_of_bundles_of_the_settings() -> None:
    service = await start_service(compose(BrokerSettings, default_namespace_bundles=5))
    try:
        transport = httpx.ASGITransport(create_app(service, MetricsPage(service)))
        async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
            for name, body, count in (
                ("without", None, 5),
                ("with-policies", {"properties": {"a": "1"}}, 5),
                ("none", {"bundles": {"numBundles": 0}}, 5),
                ("own", {"bundles": {"numBundles": 3}}, 3),
            ):
                path = f"/admin/v2/namespaces/t1/{name}"
                (await http.put(path, json=body)).raise_for_status()
                assert (await http.get(f"{path}/bundles")).json()["numBundles"] == count
    finally:
        await stop_service(service)


async def test_a_new_cluster_starts_with_that_number() -> None:
    resources = Resources(MemoryStore())
    urls = {"service_url": "pulsar://b:1", "http_url": "http://b:2"}
    await ensure_defaults(resources, "c", **urls, only_broker=True, bundles=6)
    policies = await resources.policies(NamespaceName.parse("public/default"))
    assert len(ranges(policies)) == 6
