"""Messages by peek, id and time, and moves of a subscription."""

import json

import pytest

from magnetar.wire._pb.PulsarApi_pb2 import CompressionType, KeyValue
from magnetar.wire.compression import compress
from magnetar.wire.entry import build_entry, with_broker_entry_metadata

from .support import Admin, append, entry, metadata

PATH = "~/persistent/t1/n1/a"


async def test_peek_shows_payload_and_metadata(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", PATH + "/subscription/s")
    at = await append(
        topic,
        entry(
            b"\x00\xffhi",
            3,
            properties=[KeyValue(key="n", value="1"), KeyValue(key="é", value='q"')],
            partition_key="kü\r\nX-Injected: 1",
            event_time=1_700_000_000_000,
            deliver_at_time=1_700_000_000_940,
            ordering_key=b"ok",
        ),
    )
    peeked = await admin.call("GET", PATH + "/subscription/s/position/1")
    assert peeked.content == b"\x00\xffhi"
    raw = dict(peeked.headers.raw)
    assert raw[b"X-Pulsar-Message-ID"] == str(at).encode()
    assert json.loads(raw[b"X-Pulsar-PROPERTY"]) == {"n": "1", "é": 'q"'}
    assert raw[b"X-Pulsar-publish-time"] == b"2023-11-14T22:13:20.003Z"
    assert raw[b"X-Pulsar-event-time"] == b"2023-11-14T22:13:20Z"
    assert raw[b"X-Pulsar-deliver-at-time"] == b"2023-11-14T22:13:20.94Z"
    assert raw[b"X-Pulsar-producer-name"] == b"p"
    assert raw[b"X-Pulsar-sequence-id"] == b"3"
    assert raw[b"X-Pulsar-Is-Encrypted"] == b"false"
    assert raw[b"X-Pulsar-txn-uncommitted"] == b"false"
    assert raw[b"X-Pulsar-Base64-ordering-key"] == b"b2s="
    assert raw[b"X-Pulsar-partition-key"] == "kü  X-Injected: 1".encode()
    lower = {name.lower() for name in raw}
    assert b"x-injected" not in lower
    assert b"x-pulsar-num-batch-message" not in lower
    assert raw[b"content-type"] == b"application/json"
    # A missing subscription answers like a new one, and is not created.
    for position, status in ((1, 200), (2, 404)):
        answer = await admin.call("GET", f"{PATH}/subscription/other/position/{position}")
        assert answer.status_code == status
    assert list(topic.subscriptions) == ["s"]


@pytest.mark.parametrize(
    "kind", [CompressionType.LZ4, CompressionType.ZSTD, CompressionType.SNAPPY]
)
async def test_batches_come_whole_and_decompressed(
    admin: Admin, kind: "CompressionType.ValueType"
) -> None:
    topic = await admin.topic()
    await admin.done("PUT", PATH + "/subscription/s")
    plain = b"laid out by the producer " * 8
    packed = compress(kind, plain)
    described = metadata(compression=kind, uncompressed_size=len(plain), num_messages_in_batch=3)
    data = with_broker_entry_metadata(build_entry(described, packed), 1_700_000_000_000, 7)
    at = await append(topic, data)
    by_id = f"{PATH}/ledger/{at.ledger_id}/entry/{at.entry_id}"
    for path in (PATH + "/subscription/s/position/1", by_id, PATH + "/examinemessage"):
        answer = await admin.done("GET", path)
        assert answer.content == plain
        assert answer.headers["x-pulsar-num-batch-message"] == "3"
        assert answer.headers["x-pulsar-batch-size"] == str(len(packed) + 10)
        assert answer.headers["x-pulsar-compression"] == CompressionType.Name(kind)
        assert answer.headers["x-pulsar-broker-entry-metadata-index"] == "7"
    last = (await admin.call("GET", PATH + "/lastMessageId")).json()
    assert (last["ledgerId"], last["entryId"], last["batchIndex"]) == (*at, 2)


async def test_an_entry_that_cannot_be_parsed_is_reported(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", PATH + "/subscription/s")
    bomb = metadata(compression=CompressionType.LZ4, uncompressed_size=1 << 31)
    await append(topic, build_entry(bomb, b"x"))
    await append(topic, b"no entry at all")
    for position in (1, 2):
        answer = await admin.call("GET", f"{PATH}/subscription/s/position/{position}")
        assert answer.status_code == 500
        assert "cannot be shown" in answer.json()["reason"]
    # An encrypted payload is shown unchanged.
    hidden = metadata(compression=CompressionType.LZ4, uncompressed_size=99)
    hidden.encryption_keys.add(key="k", value=b"v")
    await append(topic, build_entry(hidden, b"cipher"))
    answer = await admin.done("GET", PATH + "/subscription/s/position/3")
    assert (answer.content, answer.headers["x-pulsar-is-encrypted"]) == (b"cipher", "true")


async def test_finding_messages(admin: Admin) -> None:
    ids = await admin.publish([b"m0", b"m1", b"m2"])
    examine = PATH + "/examinemessage?initialPosition={}&messagePosition={}"
    for position, number, body in (
        *(("earliest", 1, b"m0"), ("earliest", 3, b"m2"), ("latest", 1, b"m2")),
        *(("latest", 3, b"m0"), ("odd", 0, b"m2")),
        # Beyond the other end, the farthest message.
        *(("earliest", 4, b"m2"), ("latest", 99, b"m0"), ("earliest", -3, b"m0")),
    ):
        assert (await admin.done("GET", examine.format(position, number))).content == body
    first = ids[0]
    for timestamp, expected in (
        *((0, (-1, -1)), (1, first), (1_700_000_000_001, ids[1])),
        (1_700_000_000_003, (first.ledger_id, 3)),
    ):
        actual = (await admin.call("GET", f"{PATH}/messageid/{timestamp}")).json()
        assert (actual["ledgerId"], actual["entryId"]) == expected
    last = (await admin.call("GET", PATH + "/lastMessageId")).json()
    assert last == {
        "ledgerId": ids[2].ledger_id, "entryId": ids[2].entry_id,
        "partitionIndex": -1, "batchIndex": -1, "batchSize": 0,
    }  # fmt: skip
    second = {"ledgerId": ids[1].ledger_id, "entryId": ids[1].entry_id}
    size = len(entry(b"m0"))
    assert (await admin.call("PUT", PATH + "/backlogSize", second)).json() == size
    assert (await admin.call("PUT", PATH + "/backlogSize", {"ledgerId": -1})).json() == 0


async def test_an_empty_topic_has_no_message_to_examine(admin: Admin) -> None:
    await admin.topic()
    for position in ("earliest", "latest"):
        answer = await admin.call("GET", f"{PATH}/examinemessage?initialPosition={position}")
        assert answer.status_code == 412
        reason = "Could not examine messages due to the total message is zero"
        assert answer.json() == {"reason": reason}


async def test_moving_a_subscription(admin: Admin) -> None:
    await admin.topic()
    sub = PATH + "/subscription/s"
    await admin.done("PUT", sub)
    ids = await admin.publish([b"m%d" % i for i in range(10)])

    async def next_is(body: bytes | None) -> None:
        actual = await admin.call("GET", sub + "/position/1")
        assert (actual.content if actual.status_code == 200 else None) == body

    fourth = {"ledgerId": ids[4].ledger_id, "entryId": ids[4].entry_id, "partitionIndex": -1}
    await admin.done("POST", sub + "/resetcursor", fourth)
    await next_is(b"m4")
    for name in ("isExcluded", "excluded"):
        await admin.done("POST", sub + "/resetcursor", {**fourth, name: True})
        await next_is(b"m5")
    await admin.done("POST", sub + "/resetcursor", {"ledgerId": 99_999, "entryId": 0})
    await next_is(None)
    await admin.done("POST", sub + "/resetcursor/0")
    await next_is(b"m0")
    await admin.done("POST", sub + "/resetcursor/1700000000002")
    await next_is(b"m2")
    await admin.done("POST", sub + "/skip/3")
    await next_is(b"m5")
    await admin.done("POST", sub + "/expireMessages", {**fourth, "entryId": ids[6].entry_id})
    await next_is(b"m7")
    scan = (await admin.done("POST", sub + "/analyzeBacklog")).json()
    assert (scan["entries"], scan["messages"], scan["aborted"]) == (3, 3, False)
    assert (scan["firstMessageId"], scan["lastMessageId"]) == (str(ids[7]), str(ids[9]))
    # The messages have old publish times, but their ledger is only seconds old.
    await admin.done("POST", PATH + "/all_subscription/expireMessages/5")
    await next_is(b"m7")
    await admin.done("POST", sub + "/skip_all")
    await next_is(None)
    await admin.done("POST", sub + "/resetcursor", {"ledgerId": -1, "entryId": -1})
    await next_is(b"m0")
    await admin.done("POST", "~/namespaces/t1/n1/clearBacklog/s")
    await next_is(None)
    await admin.done("POST", "~/namespaces/t1/n1/unsubscribe/s")
    assert (await admin.call("GET", PATH + "/subscriptions")).json() == []


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"batchIndex": 1}, 0b110),
        ({"batchIndex": 1, "isExcluded": True}, 0b100),
        ({"batchIndex": 1, "excluded": True}, 0b100),
        ({"batchIndex": 0}, 0b111),
        ({"batchIndex": 0, "excluded": True}, 0b110),
        ({"batchIndex": 2, "excluded": True}, 0),
        ({"batchIndex": 9}, 0b111),
        ({"batchIndex": 9, "excluded": True}, 0),
        ({"batchIndex": -1}, 0b111),
        ({"excluded": True}, 0),
        # The batch's size comes from the entry, not from the client.
        ({"batchIndex": 1, "batchSize": 2}, 0b110),
    ],
)
async def test_reset_into_a_batch(admin: Admin, given: dict[str, object], left: int) -> None:
    topic = await admin.topic()
    await admin.done("PUT", PATH + "/subscription/s")
    at = await append(topic, build_entry(metadata(num_messages_in_batch=3), b"three"))
    body = {"ledgerId": at.ledger_id, "entryId": at.entry_id, **given}
    await admin.done("POST", PATH + "/subscription/s/resetcursor", body)
    cursor = topic.subscriptions["s"].cursor
    assert cursor.backlog == (1 if left else 0)
    if left:
        assert cursor.remaining_batch(*at) in {left, None if left == 0b111 else left}


async def test_a_reset_after_the_end_with_a_batch_index(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", PATH + "/subscription/s")
    at = await append(topic, entry(b"one"))
    body = {"ledgerId": at.ledger_id, "entryId": at.entry_id + 5, "batchIndex": 1}
    await admin.done("POST", PATH + "/subscription/s/resetcursor", body)
    assert topic.subscriptions["s"].cursor.backlog == 0


async def test_expiry_up_to_a_position_that_does_not_fit_is_refused(admin: Admin) -> None:
    await admin.topic()
    sub = PATH + "/subscription/s"
    await admin.done("PUT", sub)
    last = (await admin.publish([b"m0", b"m1"]))[-1]
    beyond = {"ledgerId": last.ledger_id, "entryId": last.entry_id + 1}
    answer = await admin.call("POST", sub + "/expireMessages", beyond)
    assert answer.status_code == 409
    assert "invalid message position provided" in answer.json()["reason"]
    elsewhere = {**beyond, "entryId": last.entry_id, "partitionIndex": 3}
    answer = await admin.call("POST", sub + "/expireMessages", elsewhere)
    assert answer.status_code == 412
    assert "doesn't match partition index for the topic" in answer.json()["reason"]
    assert (await admin.done("GET", sub + "/position/1")).content == b"m0"


@pytest.mark.parametrize("body", [{}, {"ledgerId": -1}, {"partitionIndex": -1}])
async def test_a_position_without_an_id_is_the_first(admin: Admin, body: dict[str, int]) -> None:
    await admin.topic()
    sub = PATH + "/subscription/s"
    await admin.done("PUT", sub)
    await admin.publish([b"m0", b"m1"])
    assert (await admin.done("POST", sub + "/analyzeBacklog", body)).json()["entries"] == 2
    await admin.done("POST", sub + "/skip_all")
    await admin.done("POST", sub + "/expireMessages", body)
    await admin.done("POST", sub + "/resetcursor", body)
    assert (await admin.done("GET", sub + "/position/1")).content == b"m0"


async def test_a_backlog_is_counted_from_a_position(admin: Admin) -> None:
    await admin.topic()
    sub = PATH + "/subscription/s"
    await admin.done("PUT", sub)
    ids = await admin.publish([b"m%d" % i for i in range(10)])

    async def counted(start: dict[str, object] | None) -> tuple[object, ...]:
        call = (sub + "/analyzeBacklog",) if start is None else (sub + "/analyzeBacklog", start)
        actual = (await admin.done("POST", *call)).json()
        return actual["entries"], actual.get("firstMessageId"), actual.get("lastMessageId")

    def at(number: int) -> dict[str, object]:
        return {"ledgerId": ids[0].ledger_id, "entryId": number, "partitionIndex": -1}

    last = str(ids[9])
    assert await counted(None) == (10, str(ids[0]), last)
    assert await counted({"ledgerId": -1, "entryId": -1}) == (10, str(ids[0]), last)
    assert await counted(at(4)) == (6, str(ids[4]), last)
    assert await counted(at(9)) == (1, last, last)
    assert await counted(at(12)) == (0, None, None)
    await admin.done("POST", sub + "/skip/5")
    assert await counted(at(2)) == (5, str(ids[5]), last)
    assert (await admin.call("POST", sub + "/analyzeBacklog", {"ledgerId": "x"})).status_code == 400


async def test_internal_cursor_properties_are_numbers_only(admin: Admin) -> None:
    """Java's admin client hangs if a property is a text."""
    await admin.topic()
    await admin.done("PUT", PATH + "/subscription/s")
    await admin.done("PUT", PATH + "/subscription/s/properties", {"team": "payments"})
    internal = (await admin.call("GET", PATH + "/internalStats")).json()
    assert internal["cursors"]["s"]["properties"] == {}
    stats = (await admin.call("GET", PATH + "/stats")).json()
    assert stats["subscriptions"]["s"]["subscriptionProperties"] == {"team": "payments"}


async def test_properties(admin: Admin) -> None:
    await admin.done("PUT", PATH, {"k": "v"})
    await admin.done("PUT", PATH + "/properties", {"k2": "v2"})
    assert (await admin.call("GET", PATH + "/properties")).json() == {"k": "v", "k2": "v2"}
    await admin.done("DELETE", PATH + "/properties?key=k")
    assert (await admin.call("GET", PATH + "/properties")).json() == {"k2": "v2"}
    sub = PATH + "/subscription/s"
    start = {"ledgerId": -1, "entryId": -1, "properties": {"p": "q"}}
    await admin.done("PUT", sub, start)
    assert (await admin.call("GET", sub + "/properties")).json() == {"p": "q"}
    await admin.done("PUT", sub + "/properties", {"z": "1"})
    assert (await admin.call("GET", sub + "/properties")).json() == {"z": "1"}


async def test_terminate_and_truncate(admin: Admin) -> None:
    ids = await admin.publish([b"m"] * 2)
    await admin.done("PUT", PATH + "/subscription/s", {"ledgerId": -1, "entryId": -1})
    await admin.done("DELETE", PATH + "/truncate")
    stats = (await admin.call("GET", PATH + "/stats")).json()
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    for _ in range(2):
        end = (await admin.done("POST", PATH + "/terminate")).json()
        assert (end["ledgerId"], end["entryId"]) == tuple(ids[-1])
    await admin.done("PUT", "~/persistent/t1/n1/pt/partitions", 2)
    ends = (await admin.done("POST", "~/persistent/t1/n1/pt/terminate/partitions")).json()
    assert set(ends) == {"0", "1"}
