"""The broker's description of itself: settings, load, health and lookups."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.memory_bookie import MemoryBookie

from magnetar.admin.routers import brokers
from magnetar.admin.stats.internal import NO_COMPACTED_LEDGER, compacted_ledger
from magnetar.admin.stats.load_report import balance_view, decisions_view, load_report
from magnetar.broker.balance.balancer import Counts
from magnetar.broker.balance.model import BundleLoad, LoadReport, Move, Nothing, Round
from magnetar.broker.ownership.location import Located
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.compaction.records import CompactedFile, CompactionRecord
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName
from magnetar.offload.stores import StoreSpec
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import compose, settings_of
from magnetar.settings.standalone import StandaloneSettings

from .support import BROKER, Admin

LOOKUP = "/lookup/v2/topic/persistent/t1/n1/a"


async def document(admin: Admin, path: str) -> Any:
    return (await admin.done("GET", path)).json()


async def test_a_single_broker_has_no_load_report_and_no_balance(admin: Admin) -> None:
    assert (await admin.call("GET", "~/broker-stats/load-report")).status_code == 204
    for path in ("~/brokers/balance", "~/brokers/balance/dry-run"):
        answer = await admin.call("GET", path)
        assert (answer.status_code, "There is only this broker" in answer.text) == (404, True)
    assert await document(admin, "~/bookies/racks-info") == {}
    assert await document(admin, "~/bookies/all") == {"bookies": []}
    admin.page.bookies = (MemoryBookie("b1", "first"),)  # type: ignore[assignment]
    assert await document(admin, "~/bookies/all") == {"bookies": [{"bookieId": "b1"}]}


async def test_settings_change_at_run_time_or_are_refused_by_name(admin: Admin) -> None:
    names = await document(admin, "~/brokers/configuration")
    assert names == sorted(names)
    assert {"dispatchThrottlingRateInMsg", "maxTopicsPerNamespace"} < set(names)
    assert await document(admin, "~/brokers/configuration/values") == {}
    changed = await admin.call("POST", "~/brokers/configuration/superUserRoles/a%2Fb,c")
    assert changed.status_code == 412
    assert changed.json()["reason"] == (
        "Can't update non-dynamic configuration: brokers read superUserRoles when they start; "
        "`brokers list-dynamic-config` lists what can change"
    )
    deleted = await admin.call("DELETE", "~/brokers/configuration/superUserRoles")
    assert deleted.status_code == 412
    assert deleted.json()["reason"].startswith("Can't delete non-dynamic configuration")
    path = "~/brokers/configuration/maxTopicsPerNamespace"
    assert (await admin.done("POST", path + "/7")).text == ""
    assert await document(admin, "~/brokers/configuration/values") == {"maxTopicsPerNamespace": "7"}
    shown = await document(admin, "~/brokers/configuration/runtime")
    assert shown["maxTopicsPerNamespace"] == "7"
    await admin.done("DELETE", path)
    await admin.done("DELETE", path)
    shown = await document(admin, "~/brokers/configuration/runtime")
    assert shown["maxTopicsPerNamespace"] == "0"
    assert (await admin.done("GET", "~/brokers/version")).text == admin.service.version


async def test_a_subscription_has_a_dispatch_rate_of_its_own(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/rated")
    path = "~/persistent/t1/n1/rated/s1/dispatchRate"
    assert (await admin.done("GET", path)).text == ""
    applied = await document(admin, path + "?applied=true")
    assert applied["dispatchThrottlingRateInMsg"] == 0
    await admin.done("POST", path, {"dispatchThrottlingRateInMsg": 10})
    rate = {
        "dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False, "ratePeriodInSecond": 1,
    }  # fmt: skip
    assert await document(admin, path) == await document(admin, path + "?applied=true") == rate
    assert (await admin.done("GET", path + "?isGlobal=true")).text == ""
    assert (await admin.done("GET", path.replace("s1", "s2"))).text == ""
    refused = await admin.call("POST", path, {"ratePeriodInSecond": 0})
    assert refused.status_code == 412
    missing = path.replace("rated", "nosuch")
    for method, body in (("GET", None), ("POST", rate), ("DELETE", None)):
        assert (await admin.call(method, missing, body)).status_code == 404
    await admin.done("DELETE", path)
    assert (await admin.done("GET", path)).text == ""


async def test_settings_are_texts_under_pulsars_keys(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = compose(
        BrokerSettings,
        auto_topic_creation=False,
        message_ttl_s=7,
        delete_inactive_topics_after_s=None,
    )
    monkeypatch.setattr(admin.service, "settings", settings)
    shown = await document(admin, "~/brokers/configuration/runtime")
    assert len(shown) == len(settings_of(BrokerSettings))
    assert shown["allowAutoTopicCreation"] == "false"
    assert shown["allowAutoSubscriptionCreation"] == "true"
    assert shown["ttlDurationDefaultInSeconds"] == "7"
    assert shown["brokerDeleteInactiveTopicsMaxInactiveDurationSeconds"] == ""
    assert all(isinstance(value, str) for value in shown.values())


@pytest.mark.parametrize(
    ("settings", "url", "ledgers"),
    [
        (BrokerSettings(), "memory:", "/ledgers"),
        (compose(StandaloneSettings, data_dir=Path("/d")), "rocksdb:///d/metadata", "/ledgers"),
        (
            compose(BrokerProcessSettings, metadata_url="etcd://h:1", metadata_root="/m/"),
            "etcd://h:1",
            "/m/ledgers",
        ),
        (
            compose(BrokerProcessSettings, metadata_url="etcd://h:1", metadata_root="/m"),
            "etcd://h:1",
            "/m/ledgers",
        ),
    ],
)
async def test_tools_get_the_address_of_the_metadata_store(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, settings: Any, url: str, ledgers: str
) -> None:
    monkeypatch.setattr(admin.service, "settings", settings)
    assert await document(admin, "~/brokers/internal-configuration") == {
        "zookeeperServers": url,
        "configurationStoreServers": url,
        "metadataStoreUrl": url,
        "configurationMetadataStoreUrl": url,
        "ledgersRootPath": ledgers,
    }


async def test_owned_bundles_are_shown_only_for_this_broker(admin: Admin) -> None:
    await admin.done("PUT", "~/namespaces/t1/n2", {"bundles": {"numBundles": 1}})
    await admin.topic()
    await admin.done("PUT", "~/persistent/t1/n2/x")
    shared = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    owned = await document(admin, f"~/brokers/any/{BROKER}/ownedNamespaces")
    assert owned == {
        "t1/n1/0x80000000_0xc0000000": shared,
        "t1/n2/0x00000000_0xffffffff": shared,
    }
    other = await admin.call("GET", "~/brokers/any/other:8080/ownedNamespaces")
    assert (other.status_code, other.json()["reason"]) == (
        404,
        "Broker other:8080 is not part of this cluster",
    )


async def test_a_broker_shows_its_role_and_state(admin: Admin) -> None:
    await admin.topic()
    assert await document(admin, "/status") == {
        "role": "broker",
        "version": admin.service.version,
        "cluster": "standalone",
        "service_url": admin.service.service_url,
        "topics": 1,
        "connections": 0,
    }


async def test_a_broker_is_healthy_if_metadata_can_be_written(admin: Admin) -> None:
    store, before_ms = admin.service.store, admin.service.clock.now_ms()
    await admin.done("GET", "~/brokers/health")
    written = await store.get("/health/checked")
    assert written is not None
    assert before_ms <= int(written.value) <= admin.service.clock.now_ms()


async def test_a_broker_is_unhealthy_if_metadata_does_not_answer(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as hanging:
        hanging.setattr(brokers, "HEALTH_TIMEOUT_S", 0.01)
        hanging.setattr(admin.service.store, "put", never)
        answer = await admin.call("GET", "~/brokers/health")
    assert answer.status_code == 503
    assert answer.json()["reason"].startswith("Metadata cannot be written")
    assert (await admin.call("GET", "~/brokers/health")).status_code == 200


def elsewhere() -> BrokerRecord:
    urls = Urls("pulsar://b:6650", "http://b:8080", "pulsar+ssl://b:6651")
    outside = Urls("pulsar://out:1", "http://out:2", "")
    return BrokerRecord("b:8080", 1, "b", 6650, urls, listeners={"outside": outside})


@pytest.mark.parametrize(
    ("query", "header", "claims"),
    [
        ("", "", False),
        ("?authoritative=false", "", False),
        ("?authoritative=TRUE", "", True),
        ("?authoritative=true&listenerName=outside", "", True),
        ("", "outside", False),
        ("?listenerName=outside", "nobody knows", False),
    ],
)
async def test_a_lookup_returns_the_owners_addresses_of_the_listener(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, query: str, header: str, claims: bool
) -> None:
    asked: list[bool] = []
    located = [Located(elsewhere()), Located(elsewhere(), redirect=True)]

    async def locate(name: TopicName, *, authoritative: bool) -> Located:
        assert name.local == "a"
        asked.append(authoritative)
        return located.pop(0)

    monkeypatch.setattr(type(admin.service.ownership), "locate", staticmethod(locate))
    headers = {"X-Pulsar-ListenerName": header} if header else None
    actual = (await admin.call("GET", LOOKUP + query, headers=headers)).json()
    outside = "outside" in query or header == "outside"
    urls = elsewhere().reached_by("outside" if outside else "")
    assert urls is not None
    by_tls = {"brokerUrlTls": urls.service_url_tls, "httpUrlTls": urls.http_url_tls}
    assert actual == {
        "brokerUrl": urls.service_url,
        "httpUrl": urls.http_url,
        "nativeUrl": urls.service_url,
        "brokerUrlSsl": urls.service_url_tls,
        **{name: url for name, url in by_tls.items() if url},
    }
    # The topic has no owner: that broker claims it on an authoritative request.
    sent_on = await admin.call("GET", LOOKUP + query, headers=headers)
    assert sent_on.status_code == 307
    more = "&listenerName=outside" if outside else ""
    assert sent_on.headers["location"] == f"{urls.http_url}{LOOKUP}?authoritative=true{more}"
    assert asked == [claims, claims]


async def test_a_lookup_requires_an_existing_namespace(admin: Admin) -> None:
    for suffix in ("", "/bundle"):
        answer = await admin.call("GET", f"/lookup/v2/topic/persistent/t1/nope/a{suffix}")
        assert (answer.status_code, answer.json()) == (404, {"reason": "Namespace not found"})


# -- load

REPORT = LoadReport(
    broker_id="b", started_ms=1, updated_ms=2, cpu=0.25, memory_bytes=3 << 20,
    memory_limit_bytes=4 << 20, connections=5, bundle_count=6, topics=7, producers=8, consumers=9,
    msg_rate_in=10.0, msg_rate_out=11.0, msg_throughput_in=12.0, msg_throughput_out=13.0,
    bundles=(BundleLoad("t/n/0x0_0x1", 14, 15, 16, 17.0, 18.0, 19.0, 20.0),),
)  # fmt: skip


async def test_a_load_report_has_the_measurements_with_pulsars_names(admin: Admin) -> None:
    actual: Any = load_report(admin.service, REPORT, ["y", "x"])
    of_bundle = {
        "topics": 14, "producerCount": 15, "consumerCount": 16, "msgRateIn": 17.0,
        "msgRateOut": 18.0, "msgThroughputIn": 19.0, "msgThroughputOut": 20.0, "cacheSize": 0,
    }  # fmt: skip
    unknown = {"usage": -1.0, "limit": -1.0}
    assert actual == {
        "webServiceUrl": admin.service.http_url,
        "pulsarServiceUrl": admin.service.service_url,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "cpu": {"usage": 25.0, "limit": 100.0},
        "memory": {"usage": 3.0, "limit": 4.0},
        "directMemory": unknown,
        "bandwidthIn": unknown,
        "bandwidthOut": unknown,
        "msgThroughputIn": 12.0,
        "msgThroughputOut": 13.0,
        "msgRateIn": 10.0,
        "msgRateOut": 11.0,
        "lastUpdate": 2,
        "startTimestamp": 1,
        "lastStats": {"t/n/0x0_0x1": of_bundle},
        "numTopics": 7,
        "numBundles": 6,
        "numConsumers": 9,
        "numProducers": 8,
        "bundles": ["x", "y"],
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": admin.service.version,
        "protocols": {},
        "advertisedListeners": {},
        "bundleStats": {"t/n/0x0_0x1": of_bundle},
        "maxResourceUsage": 0.75,
        "loadReportType": "LocalBrokerData",
    }


def test_the_balance_shows_brokers_sorted_and_the_newest_round_first() -> None:
    move = Move("t/n/0x0_0x1", "a", "b", "b is idle", {"gain": 0.5})
    rounds = [
        Round(sequence=1, at_ms=5, leader="b", loads={"a": 0.9}, decisions=(move,)),
        Round(sequence=2, at_ms=6, leader="b", loads={}, decisions=(Nothing("even"),)),
    ]
    first = replace(REPORT, broker_id="a", draining=True)
    actual = msgspec.to_builtins(balance_view("b", [REPORT, first], rounds, Counts(3, 4, 5)))
    assert (actual["leader"], list(actual["brokers"])) == ("b", ["a", "b"])
    assert (actual["splitByThisBroker"], actual["movedByThisBroker"]) == (3, 4)
    assert actual["brokers"]["b"] == {
        "cpu": 0.25, "memory": 0.75, "bundles": 6, "topics": 7, "producers": 8, "consumers": 9,
        "msgRateIn": 10.0, "msgRateOut": 11.0, "draining": False, "reportedMs": 2,
    }  # fmt: skip
    assert actual["brokers"]["a"]["draining"] is True
    assert [item["sequence"] for item in actual["log"]] == [2, 1]
    shown = {"decision": "move", "bundle": "t/n/0x0_0x1", "source": "a", "target": "b",
             "why": "b is idle", "numbers": {"gain": 0.5}}  # fmt: skip
    assert list(actual["log"][1]["decisions"]) == [shown]
    assert decisions_view([move, Nothing("even")]) == [
        shown,
        {"decision": "nothing", "why": "even", "numbers": {}},
    ]


def test_a_compacted_ledger_has_the_size_of_its_artifact() -> None:
    assert compacted_ledger(None) == NO_COMPACTED_LEDGER
    files = tuple(
        CompactedFile(f"f{at}", 9, 1, Position(1, at), Position(1, at), 10 + at, 5, 100 + at)
        for at in (1, 2)
    )
    record = CompactionRecord(EARLIEST, 1, "a", StoreSpec("filesystem", "/cold"), 5, files)
    assert compacted_ledger(record) == {
        "ledgerId": -1,
        "entries": 23,
        "size": 203,
        "offloaded": True,
        "underReplicated": False,
    }
