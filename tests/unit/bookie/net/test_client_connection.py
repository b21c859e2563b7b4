"""A client connection without sockets: order, bounds, and ends."""

import asyncio

import pytest

from magnetar.bookie.api import BookieError, BookieUnavailable, LedgerFenced
from magnetar.bookie.net import client_connection
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.frame_socket import WRITE_BUFFER_HIGH_BYTES
from magnetar.bookie.net.protocol_v1 import Add, Frame

from .client_rig import ClientRig, feed, turns, welcome
from .peers import HOST, IDENTITY

ENDED = BookieUnavailable("ended by the test")


def failed(number: int, error: BookieError, flags: int = 0) -> bytes:
    failure = messages.encode_failure(messages.failure_of(error))
    return protocol.encode_frame(protocol.ADD_FAILED, flags, number, failure)


async def test_only_the_hello_is_sent_before_the_welcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.add(0)
    asking = asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b""))
    await turns()
    rig.connection.connection_made(rig.wire)
    rig.add(1)
    await turns()
    (hello,) = rig.wire.frames()
    assert isinstance(hello, Frame)
    assert hello.kind == protocol.HELLO
    received = messages.decode_hello(hello.payload)
    assert (received.cluster, received.client, received.bookie) == (
        "ours",
        "me",
        rig.owner.identity,
    )
    assert rig.wire.limits[0] == WRITE_BUFFER_HIGH_BYTES
    assert not rig.owner.connected
    feed(rig.connection, welcome())
    assert rig.owner.connected
    first, ping, second = rig.wire.frames()
    assert isinstance(first, Add)
    assert isinstance(ping, Frame)
    assert isinstance(second, Add)
    assert [first.id, ping.id, second.id] == [1, 1, 2]
    assert first.last_add_confirmed == -1
    assert second.last_add_confirmed == 0
    rig.connection.close(ENDED)
    await asyncio.gather(asking, return_exceptions=True)


async def test_requests_of_one_turn_are_sent_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    for entry_id in range(3):
        rig.add(entry_id)
    assert not rig.wire.writes
    await turns()
    assert len(rig.wire.writes) == 1
    rig.add(3)
    await turns()
    assert len(rig.wire.writes) == 2
    assert [frame.id for frame in rig.wire.frames() if isinstance(frame, Add)] == [1, 2, 3, 4]


async def test_adds_complete_in_order_and_are_pending_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    for entry_id in range(4):
        rig.add(entry_id, bytes(10))
    assert (rig.connection.pending, rig.connection.pending_bytes) == (4, 40)
    feed(rig.connection, protocol.encode_added(0, 1, 2))
    assert rig.kinds() == [(0, None), (1, None)]
    assert (rig.connection.pending, rig.connection.pending_bytes) == (2, 20)
    feed(rig.connection, failed(3, LedgerFenced("fenced")))
    feed(rig.connection, protocol.encode_added(0, 4, 1))
    assert rig.kinds()[2:] == [(2, LedgerFenced), (3, None)]
    assert (rig.connection.pending, rig.connection.pending_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("first", "count"),
    [(1, 0), (1, 4), (2, 1), (0, 1)],
    ids=["none", "never made", "not due", "answered"],
)
async def test_answer_to_unexpected_adds_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, first: int, count: int
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    for entry_id in range(3):
        rig.add(entry_id)
    feed(rig.connection, protocol.encode_added(0, first, count))
    assert rig.kinds() == [(item, BookieUnavailable) for item in range(3)]
    assert "broke the protocol" in str(rig.answers[0][1])
    assert rig.wire.aborted


async def test_one_answer_may_cover_all_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    for entry_id in range(3):
        rig.add(entry_id)
    feed(rig.connection, protocol.encode_added(0, 1, 3))
    assert rig.kinds() == [(0, None), (1, None), (2, None)]
    assert rig.connection.error is None


async def test_refusal_waits_only_for_earlier_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    refusal = BookieUnavailable("too much waits")
    rig.connection.refuse(lambda error: rig.answers.append((100, error)), refusal)
    assert not rig.answers, "no answer comes from inside the call"
    await turns()
    assert rig.answers == [(100, refusal)]
    rig.add(0)
    rig.add(1)
    rig.connection.refuse(lambda error: rig.answers.append((101, error)), refusal)
    rig.add(2)
    await turns()
    assert len(rig.answers) == 1
    feed(rig.connection, protocol.encode_added(0, 1, 1))
    assert rig.kinds()[1:] == [(0, None)]
    feed(rig.connection, protocol.encode_added(0, 2, 1))
    assert rig.kinds()[2:] == [(1, None), (101, BookieUnavailable)]
    rig.connection.refuse(lambda error: rig.answers.append((102, error)), refusal)
    feed(rig.connection, protocol.encode_added(0, 3, 1))
    assert rig.kinds()[4:] == [(2, None), (102, BookieUnavailable)]
    assert rig.connection.pending == rig.connection.pending_bytes == 0


async def test_failing_completion_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()

    def broken(_: BookieError | None) -> None:
        raise RuntimeError("a bug of the caller's")

    for answer in (b"answered", b"closed"):
        rig.owner.add_entries(1, range(1), [answer], last_add_confirmed=-1, on_added=broken)
        rig.connection.refuse(broken, BookieUnavailable("refused"))
        rig.add(len(rig.answers))
        if answer == b"answered":
            feed(rig.connection, protocol.encode_added(0, 1, 2))
    rig.connection.close(ENDED)
    assert rig.kinds() == [(0, None), (1, BookieUnavailable)]


@pytest.mark.parametrize("flags", [0, protocol.FLAG_READ_ONLY])
async def test_every_answer_carries_whether_the_bookie_is_writable(
    monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    for entry_id, answer in enumerate(
        (protocol.encode_added(flags, 1, 1), failed(2, LedgerFenced("x"), flags))
    ):
        rig.add(entry_id)
        rig.owner.writable = bool(flags)
        feed(rig.connection, answer)
        assert rig.owner.writable == (not flags)
    asking = asyncio.ensure_future(rig.connection.request(protocol.READ, 0, b""))
    await turns()
    rig.owner.writable = bool(flags)
    feed(rig.connection, *protocol.encode_entries(flags, 1, range(1), [b"x"]))
    await asking
    assert rig.owner.writable == (not flags)


UNWELCOME = {
    "adds": protocol.encode_added(0, 1, 1),
    "entries": b"".join(protocol.encode_entries(0, 1, range(1), [b"x"])),
    "a pong": protocol.encode_frame(protocol.PONG, 0, 1),
}


@pytest.mark.parametrize("kind", UNWELCOME)
async def test_answers_before_the_welcome_end_the_connection(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rig = ClientRig(monkeypatch)
    rig.connection.connection_made(rig.wire)
    rig.add(0)
    feed(rig.connection, UNWELCOME[kind])
    assert rig.kinds() == [(0, BookieUnavailable)]
    assert "broke the protocol" in str(rig.answers[0][1])
    assert not rig.connection.opened


@pytest.mark.parametrize("kind", UNWELCOME)
async def test_an_answer_before_the_welcome_is_none_to_a_request_that_waits(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The peer may be another bookie, or one of another cluster."""
    rig = ClientRig(monkeypatch)
    rig.connection.connection_made(rig.wire)
    asking = [
        asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b"")) for _ in range(2)
    ]
    await turns()
    feed(rig.connection, UNWELCOME[kind])
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in answers] == [BookieUnavailable] * 2
    assert "broke the protocol" in str(answers[0])
    assert rig.wire.aborted


async def test_nothing_is_sent_to_another_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClientRig(monkeypatch)
    rig.connection.connection_made(rig.wire)
    rig.add(0)
    rig.wire.frames()
    feed(rig.connection, welcome(cluster="theirs"))
    assert "cluster theirs, not ours" in str(rig.answers[0][1])
    assert not rig.connection.opened
    assert rig.wire.aborted
    assert not rig.wire.writes


async def test_closing_reason_is_the_error_of_pending_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    rig.add(0)
    closing = messages.encode_failure(messages.Failure(messages.CODE_UNAVAILABLE, "is stopping"))
    feed(rig.connection, protocol.encode_frame(protocol.CLOSING, 0, 0, closing))
    assert not rig.answers
    rig.connection.connection_lost(ConnectionResetError("reset"))
    assert "the connection ended: is stopping" in str(rig.answers[0][1])


@pytest.mark.parametrize(("lost", "text"), [(None, "ended"), (OSError("reset"), "ended: reset")])
async def test_connection_loss_is_the_error_of_pending_requests(
    monkeypatch: pytest.MonkeyPatch, lost: OSError | None, text: str
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    rig.add(0)
    asking = asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b""))
    await turns()
    rig.connection.connection_lost(lost)
    assert str(rig.answers[0][1]).endswith(text)
    with pytest.raises(BookieUnavailable, match=text):
        await asking
    with pytest.raises(BookieUnavailable, match=text):
        await rig.connection.request(protocol.PING, 0, b"")
    assert not rig.owner.connected
    assert rig.timers.live() == []
    rig.connection.connection_lost(None)
    assert len(rig.answers) == 1
    feed(rig.connection, protocol.encode_added(0, 1, 1))
    assert len(rig.answers) == 1


async def test_connection_loss_is_handled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport may report the end of a closed connection after its successor is in use."""
    rig = ClientRig(monkeypatch)
    rig.connection.connection_made(rig.wire)
    rig.connection.close(rig.owner.unavailable("not within 2 s"))
    error, retry_at = rig.connection.error, rig.owner.retry_at
    assert retry_at > 0
    rig.owner.retry_at = 0.0
    rig.connection.connection_lost(OSError("reset"))
    assert rig.connection.error is error
    assert rig.owner.retry_at == 0.0, "it is no second failed attempt"
    with pytest.raises(BookieUnavailable, match="not within 2 s"):
        await rig.connection.request(protocol.PING, 0, b"")


async def test_a_connection_that_comes_after_the_end_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.connection.close(ENDED)
    rig.connection.connection_made(rig.wire)
    assert rig.wire.closed
    assert not rig.wire.writes


async def test_requests_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "REQUESTS_PENDING_MAX", 3)
    rig = ClientRig(monkeypatch)
    rig.open()
    asked = [asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b"")) for _ in range(3)]
    await turns()
    with pytest.raises(BookieUnavailable, match="3 requests to answer already"):
        await rig.connection.request(protocol.PING, 0, b"")
    feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, 2))
    asked.append(asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b"")))
    await turns()
    assert [frame.id for frame in rig.wire.frames() if isinstance(frame, Frame)] == [1, 2, 3, 4]
    for id_ in (1, 3, 4):
        feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, id_))
    answers = await asyncio.gather(*asked)
    assert [answer.id for answer in answers] == [1, 2, 3, 4]


async def test_requests_fail_while_the_bookie_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connection, "UNSENT_BYTES_MAX", 1000)
    rig = ClientRig(monkeypatch)
    rig.open()
    rig.wire.unsent_bytes = 1001
    with pytest.raises(BookieUnavailable, match="1001 bytes are unsent"):
        await rig.connection.request(protocol.PING, 0, b"")
    rig.wire.unsent_bytes = 1000
    asking = asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b""))
    await turns()
    feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, 1))
    await asking


async def test_answer_without_a_request_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    asking = asyncio.ensure_future(rig.connection.request(protocol.PING, 0, b""))
    await turns()
    feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, 1))
    await asking
    feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, 1))
    assert rig.connection.error is None, "an answer may come after its request was given up"
    feed(rig.connection, protocol.encode_frame(protocol.PONG, 0, 2))
    assert rig.connection.error is not None


async def test_draining_ends_with_the_last_add(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    await asyncio.wait_for(rig.connection.drained(), 1)
    rig.add(0)
    rig.add(1)
    drained = asyncio.ensure_future(rig.connection.drained())
    await turns()
    feed(rig.connection, protocol.encode_added(0, 1, 1))
    await turns()
    assert not drained.done()
    feed(rig.connection, protocol.encode_added(0, 2, 1))
    await asyncio.wait_for(drained, 1)


async def test_draining_ends_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    rig.add(0)
    drained = [asyncio.ensure_future(rig.connection.drained()) for _ in range(2)]
    await turns()
    drained[0].cancel()
    await turns()
    rig.connection.close(ENDED)
    await asyncio.wait_for(drained[1], 1)
    await asyncio.wait_for(rig.connection.settled(), 1)


async def test_waiting_for_the_welcome_ends_with_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    waiting = asyncio.ensure_future(rig.connection.settled())
    await turns()
    assert not waiting.done()
    rig.connection.close(ENDED)
    await asyncio.wait_for(waiting, 1)


async def test_reused_list_is_sent_with_its_current_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    entries = [b"first"]
    for entry_id, data in enumerate((b"first", b"second")):
        entries[0] = data
        rig.owner.add_entries(
            1,
            range(entry_id, entry_id + 1),
            entries,
            last_add_confirmed=-1,
            on_added=lambda _: None,
        )
        await turns()
    adds = [frame for frame in rig.wire.frames() if isinstance(frame, Add)]
    assert [add.entries for add in adds] == [[b"first"], [b"second"]]
    rig.connection.close(ENDED)


async def test_client_closed_before_use_refuses_requests() -> None:
    bookie = RemoteBookie(IDENTITY, HOST, 1)
    await bookie.close()
    with pytest.raises(BookieUnavailable, match="not used any more"):
        await bookie.ping()
    assert not bookie.connected
