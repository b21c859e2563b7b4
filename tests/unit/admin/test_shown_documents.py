"""The complete documents that tools read, and the refusals to show them."""

from pathlib import Path

import httpx
import pytest
from tests.support.settings import changed

from magnetar.admin.app import create_app
from magnetar.admin.stats.internal import internal_info
from magnetar.broker.subscription.spec import SubType
from magnetar.core.ids import Position
from magnetar.managed_ledger.factory import ManagedLedgerInfo
from magnetar.managed_ledger.record import CursorRecord, LedgerItem, ManagedLedgerRecord
from magnetar.observe.health import Probes

from .support import NO_BODY, Admin

TOPIC = "~/persistent/t1/n1/a"


def test_internal_info_shows_the_records_of_a_topic() -> None:
    record = ManagedLedgerRecord(
        created_ms=1_700_000_000_000,
        modified_ms=1_700_000_001_500,
        ledgers=(
            LedgerItem(7, 1_700_000_000_100, 1_700_000_000_200, 3, 99),
            LedgerItem(8, 1_700_000_000_300, 1_700_000_000_400, 0, 0),
            LedgerItem(9, 1_700_000_000_500),
        ),
        properties={"k": "v"},
        terminated_at=Position(9, 4),
    )
    cursor = CursorRecord(
        Position(7, 1), 1_700_000_000_600, 0, 1_700_000_000_700, ledger_id=5, properties={"a": "1"}
    )
    actual = internal_info(ManagedLedgerInfo("log", 12, record, {"s": cursor}), moved={7})
    assert actual == {
        "version": 12,
        "creationDate": "2023-11-14T22:13:20Z",
        "modificationDate": "2023-11-14T22:13:21.5Z",
        "ledgers": [
            {
                "ledgerId": 7,
                "timestamp": 1_700_000_000_200,
                "isOffloaded": True,
                "entries": 3,
                "size": 99,
            },
            {
                "ledgerId": 8,
                "timestamp": 1_700_000_000_400,
                "isOffloaded": False,
                "entries": 0,
                "size": 0,
            },
            {"ledgerId": 9, "timestamp": 1_700_000_000_500, "isOffloaded": False},
        ],
        "cursors": {
            "s": {
                "creationDate": "2023-11-14T22:13:20.6Z",
                "modificationDate": "2023-11-14T22:13:20.7Z",
                "cursorsLedgerId": 5,
                "markDelete": {"ledgerId": 7, "entryId": 1},
            }
        },
        "terminatedPosition": {"ledgerId": 9, "entryId": 4},
        "properties": {"k": "v"},
    }


def test_internal_info_omits_values_that_were_never_set() -> None:
    actual = internal_info(ManagedLedgerInfo("log", 1, ManagedLedgerRecord(0, 0), {}))
    assert set(actual) == {"version", "creationDate", "modificationDate", "ledgers", "cursors"}


async def test_internal_stats_show_the_positions_of_cursors(admin: Admin) -> None:
    """As in Pulsar, the entries since the first unacked one include the read position."""
    await admin.done("PUT", TOPIC + "/subscription/behind")
    reader = await admin.consumer("reads", SubType.Exclusive)
    ids = await admin.publish([b"m"] * 4)
    topic = await admin.topic()
    internal = (await admin.done("GET", TOPIC + "/internalStats")).json()
    assert (internal["numberOfEntries"], internal["entriesAddedCounter"]) == (4, 4)
    assert (
        internal["totalSize"] == internal["currentLedgerSize"] == topic.managed_ledger.bytes_total
    )
    assert internal["currentLedgerEntries"] == 4
    (ledger,) = internal["ledgers"]
    assert (ledger["ledgerId"], ledger["offloaded"]) == (ids[0].ledger_id, False)
    behind, reads = internal["cursors"]["behind"], internal["cursors"]["reads"]
    assert behind["markDeletePosition"] == f"{ids[0].ledger_id}:-1"
    assert behind["readPosition"] == f"{ids[0].ledger_id}:0"
    assert behind["numberOfEntriesSinceFirstNotAckedMessage"] == 1
    assert (behind["waitingReadOp"], behind["subscriptionHavePendingRead"]) == (False, False)
    assert reads["readPosition"] == f"{ids[0].ledger_id}:4"
    assert reads["numberOfEntriesSinceFirstNotAckedMessage"] == 5
    assert reads["subscriptionHavePendingRead"] is True
    assert reads["lastLedgerSwitchTimestamp"].endswith("Z")
    assert reads["subscriptionHavePendingReplayRead"] is False
    assert reader.messages_out == 4


async def test_internal_stats_of_a_non_persistent_topic_are_0(admin: Admin) -> None:
    await admin.done("PUT", "~/non-persistent/t1/n1/np")
    internal = (await admin.done("GET", "~/non-persistent/t1/n1/np/internalStats")).json()
    assert internal.pop("cursors") == {}
    assert set(internal.values()) == {0}


async def test_stats_show_the_creation_time_and_the_backlog(admin: Admin) -> None:
    await admin.done("PUT", TOPIC + "/subscription/behind")
    await admin.publish([b"m"] * 3)
    topic = await admin.topic()
    stats = (await admin.done("GET", TOPIC + "/stats")).json()
    assert stats["topicCreationTimeStamp"] == topic.managed_ledger.created_ms > 0
    assert stats["storageSize"] == stats["backlogSize"] == topic.managed_ledger.bytes_total > 0
    assert stats["subscriptions"]["behind"]["backlogSize"] == stats["backlogSize"]
    assert stats["ownerBroker"] == admin.service.broker_id


async def test_stats_of_all_topics_are_by_namespace_bundle_and_domain(admin: Admin) -> None:
    await admin.done("PUT", "~/namespaces/t1/n2", {"bundles": {"numBundles": 1}})
    for path in ("~/persistent/t1/n2/x", "~/persistent/t1/n2/y", "~/non-persistent/t1/n2/z"):
        await admin.done("PUT", path)
        await admin.done("GET", path + "/stats")
    await admin.topic("a")
    actual = (await admin.done("GET", "~/broker-stats/topics")).json()
    assert set(actual) == {"t1/n1", "t1/n2"}
    (bundle,) = actual["t1/n2"]
    assert bundle == "0x00000000_0xffffffff"
    assert {kind: set(topics) for kind, topics in actual["t1/n2"][bundle].items()} == {
        "persistent": {"persistent://t1/n2/x", "persistent://t1/n2/y"},
        "non-persistent": {"non-persistent://t1/n2/z"},
    }


async def test_evictions_are_listed_by_topic(admin: Admin) -> None:
    for local in ("a", "b"):
        await admin.done("PUT", f"~/persistent/t1/n1/{local}/subscription/s")
        await admin.publish([b"old"] * 2, local)
    await admin.topic("idle")
    path = "~/magnetar/namespaces/t1/n1/effect"
    actual = (await admin.done("GET", path)).json()
    assert (actual["topics_total"], actual["topics_affected"], actual["topics"]) == (3, 0, {})
    tried = "?backlogQuotaSize=1&backlogQuotaSizePolicy=consumer_backlog_eviction"
    actual = (await admin.done("GET", path + tried)).json()
    assert actual["evicts"] == {"s": 4}
    assert actual["expires"] == {}
    assert (actual["topics_total"], actual["topics_affected"], actual["left_off"]) == (3, 2, 0)
    assert set(actual["topics"]) == {"persistent://t1/n1/a", "persistent://t1/n1/b"}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("messageTTL=-1", "-1"),
        ("messageTTL=soon", "messageTTL"),
        ("retentionTimeInMinutes=1", "go together"),
        ("retentionSizeInMB=1", "go together"),
        ("backlogQuotaSize=1&backlogQuotaSizePolicy=nothing", "nothing"),
    ],
)
async def test_an_invalid_policy_is_not_tried(admin: Admin, query: str, named: str) -> None:
    answer = await admin.call("GET", f"~/magnetar/namespaces/t1/n1/effect?{query}")
    assert answer.status_code == 400
    assert named in answer.text


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("PUT", "/compaction", "Compaction on a non-persistent topic is not allowed"),
        ("GET", "/compaction", "Compaction on a non-persistent topic is not allowed"),
        (
            *("POST", "/all_subscription/expireMessages/5"),
            "Expire messages on a non-persistent topic is not allowed",
        ),
        (
            *("POST", "/subscription/s/skip/1"),
            (
                "non-persistent://t1/n1/np is a non-persistent topic: "
                "its subscriptions have no position"
            ),
        ),
    ],
)
async def test_requests_that_need_a_log_are_refused_without_one(
    admin: Admin, method: str, path: str, text: str
) -> None:
    await admin.done("PUT", "~/non-persistent/t1/n1/np")
    answer = await admin.call(method, "~/non-persistent/t1/n1/np" + path)
    assert (answer.status_code, answer.json()["reason"]) == (405, text)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "~/schemas/t1/n1/a/schema", NO_BODY, 400, "The body must be a schema"),
        ("GET", "~/magnetar/ledgers/health", NO_BODY, 404, "There is only this process"),
        ("GET", "~/magnetar/bookies/drains", NO_BODY, 404, "There is only this process"),
        ("GET", "~/magnetar/bookies/b1/drain", NO_BODY, 404, "There is only this process"),
        ("POST", "~/magnetar/bookies/b1/drain", NO_BODY, 404, "There is only this process"),
        ("DELETE", "~/magnetar/bookies/b1/drain", NO_BODY, 404, "There is only this process"),
        ("GET", "~/brokers/balance", NO_BODY, 404, "There is only this broker"),
    ],
)
async def test_missing_objects_are_not_found(
    admin: Admin, method: str, path: str, body: object, status: int, text: str
) -> None:
    answer = await admin.call(method, path, body)
    assert answer.status_code == status
    assert text in answer.text


async def test_readiness_shows_the_reason(admin: Admin) -> None:
    reasons = [""]
    probes = Probes(lambda: reasons[0], dict)
    transport = httpx.ASGITransport(create_app(admin.service, admin.page, probes))
    async with httpx.AsyncClient(transport=transport, base_url="http://broker") as http:
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.text) == (200, "ok\n")
        reasons[0] = "the metadata store is away"
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.text) == (503, "the metadata store is away\n")
        assert (await http.get("/healthz")).status_code == 200


async def test_a_file_decides_whether_a_load_balancer_may_choose_the_broker(
    admin: Admin, tmp_path: Path
) -> None:
    reasons, path = [""], tmp_path / "status"
    transport = httpx.ASGITransport(
        create_app(admin.service, admin.page, Probes(lambda: reasons[0], dict))
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://broker") as http:

        async def status() -> tuple[int, str]:
            answer = await http.get("/status.html")
            return answer.status_code, answer.text

        assert await status() == (404, "status_file (statusFilePath) is not set\n")
        admin.service.settings = changed(admin.service.settings, status_file=str(path))
        assert await status() == (404, "the file of status_file does not exist\n")
        path.mkdir()
        assert (await status())[0] == 404
        path.rmdir()
        path.touch()
        assert await status() == (200, "OK")
        reasons[0] = "the metadata store is away"
        assert await status() == (503, reasons[0])


async def test_a_removed_policy_leaves_the_namespace_unchanged(admin: Admin) -> None:
    path = "~/namespaces/t1/n1"
    before = (await admin.done("GET", path)).json()
    for verb, policy, body in (
        ("POST", "messageTTL", 60),
        ("POST", "retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}),
        ("POST", "maxProducersPerTopic", 3),
    ):
        await admin.done(verb, f"{path}/{policy}", body)
        assert (await admin.done("GET", path)).json() != before
        await admin.done("DELETE", f"{path}/{policy}")
        assert (await admin.done("GET", path)).json() == before, policy
