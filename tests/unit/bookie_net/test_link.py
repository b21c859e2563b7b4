"""A client's link without sockets: order, bounds, and what ends it."""

import asyncio

import pytest

from magnetar.bookie.api import BookieError, BookieUnavailable, LedgerFenced
from magnetar.bookie.net import link as link_module
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.link import WRITE_BUFFER_HIGH_BYTES
from magnetar.bookie.net.protocol_v1 import Add, Frame

from .link_rig import LinkRig, feed, turns, welcome
from .peers import HOST, IDENTITY

ENDED = BookieUnavailable("ended by the test")


def failed(number: int, error: BookieError, flags: int = 0) -> bytes:
    failure = messages.encode_failure(messages.failure_of(error))
    return protocol.encode_frame(protocol.ADD_FAILED, flags, number, failure)


async def test_nothing_but_the_hello_is_sent_before_the_welcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
    rig.add(0)
    asking = asyncio.ensure_future(rig.link.request(protocol.PING, 0, b""))
    await turns()
    rig.link.connection_made(rig.wire)
    rig.add(1)
    await turns()
    (hello,) = rig.wire.frames()
    assert isinstance(hello, Frame)
    assert hello.kind == protocol.HELLO
    said = messages.decode_hello(hello.payload)
    assert (said.cluster, said.client, said.bookie) == ("ours", "me", rig.owner.identity)
    assert rig.wire.limits[0] == WRITE_BUFFER_HIGH_BYTES
    assert not rig.owner.connected
    feed(rig.link, welcome())
    assert rig.owner.connected
    first, ping, second = rig.wire.frames()
    assert isinstance(first, Add)
    assert isinstance(ping, Frame)
    assert isinstance(second, Add)
    assert [first.id, ping.id, second.id] == [1, 1, 2]
    assert first.last_add_confirmed == -1
    assert second.last_add_confirmed == 0
    rig.link.close(ENDED)
    await asyncio.gather(asking, return_exceptions=True)


async def test_what_is_made_in_one_turn_leaves_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
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


async def test_adds_are_answered_in_order_and_count_as_pending_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    for entry_id in range(4):
        rig.add(entry_id, bytes(10))
    assert (rig.link.pending, rig.link.pending_bytes) == (4, 40)
    feed(rig.link, protocol.encode_added(0, 1, 2))
    assert rig.kinds() == [(0, None), (1, None)]
    assert (rig.link.pending, rig.link.pending_bytes) == (2, 20)
    feed(rig.link, failed(3, LedgerFenced("fenced")))
    feed(rig.link, protocol.encode_added(0, 4, 1))
    assert rig.kinds()[2:] == [(2, LedgerFenced), (3, None)]
    assert (rig.link.pending, rig.link.pending_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("first", "count"),
    [(1, 0), (1, 4), (2, 1), (0, 1)],
    ids=["none", "never made", "not due", "answered"],
)
async def test_an_answer_to_other_adds_than_are_due_ends_the_link(
    monkeypatch: pytest.MonkeyPatch, first: int, count: int
) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    for entry_id in range(3):
        rig.add(entry_id)
    feed(rig.link, protocol.encode_added(0, first, count))
    assert rig.kinds() == [(each, BookieUnavailable) for each in range(3)]
    assert "broke the protocol" in str(rig.answers[0][1])
    assert rig.wire.aborted


async def test_all_that_was_made_may_be_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    for entry_id in range(3):
        rig.add(entry_id)
    feed(rig.link, protocol.encode_added(0, 1, 3))
    assert rig.kinds() == [(0, None), (1, None), (2, None)]
    assert rig.link.error is None


async def test_a_refusal_waits_for_the_adds_before_it_and_only_for_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    refusal = BookieUnavailable("too much waits")
    rig.link.refuse(lambda error: rig.answers.append((100, error)), refusal)
    assert not rig.answers, "no answer comes from inside the call"
    await turns()
    assert rig.answers == [(100, refusal)]
    rig.add(0)
    rig.add(1)
    rig.link.refuse(lambda error: rig.answers.append((101, error)), refusal)
    rig.add(2)
    await turns()
    assert len(rig.answers) == 1
    feed(rig.link, protocol.encode_added(0, 1, 1))
    assert rig.kinds()[1:] == [(0, None)]
    feed(rig.link, protocol.encode_added(0, 2, 1))
    assert rig.kinds()[2:] == [(1, None), (101, BookieUnavailable)]
    rig.link.refuse(lambda error: rig.answers.append((102, error)), refusal)
    feed(rig.link, protocol.encode_added(0, 3, 1))
    assert rig.kinds()[4:] == [(2, None), (102, BookieUnavailable)]
    assert rig.link.pending == rig.link.pending_bytes == 0


async def test_a_completion_that_fails_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()

    def broken(_: BookieError | None) -> None:
        raise RuntimeError("a bug of the caller's")

    for answer in (b"answered", b"closed"):
        rig.owner.add_entries(1, range(1), [answer], last_add_confirmed=-1, on_added=broken)
        rig.link.refuse(broken, BookieUnavailable("refused"))
        rig.add(len(rig.answers))
        if answer == b"answered":
            feed(rig.link, protocol.encode_added(0, 1, 2))
    rig.link.close(ENDED)
    assert rig.kinds() == [(0, None), (1, BookieUnavailable)]


@pytest.mark.parametrize("flags", [0, protocol.FLAG_READ_ONLY])
async def test_every_answer_says_whether_the_bookie_takes_adds(
    monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    for entry_id, answer in enumerate(
        (protocol.encode_added(flags, 1, 1), failed(2, LedgerFenced("x"), flags))
    ):
        rig.add(entry_id)
        rig.owner.writable = bool(flags)
        feed(rig.link, answer)
        assert rig.owner.writable == (not flags)
    asking = asyncio.ensure_future(rig.link.request(protocol.READ, 0, b""))
    await turns()
    rig.owner.writable = bool(flags)
    feed(rig.link, *protocol.encode_entries(flags, 1, range(1), [b"x"]))
    await asking
    assert rig.owner.writable == (not flags)


UNWELCOME = {
    "adds": protocol.encode_added(0, 1, 1),
    "entries": b"".join(protocol.encode_entries(0, 1, range(1), [b"x"])),
    "a pong": protocol.encode_frame(protocol.PONG, 0, 1),
}


@pytest.mark.parametrize("kind", UNWELCOME)
async def test_answers_before_the_welcome_end_the_link(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rig = LinkRig(monkeypatch)
    rig.link.connection_made(rig.wire)
    rig.add(0)
    feed(rig.link, UNWELCOME[kind])
    assert rig.kinds() == [(0, BookieUnavailable)]
    assert "broke the protocol" in str(rig.answers[0][1])
    assert not rig.link.opened


async def test_a_stranger_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LinkRig(monkeypatch)
    rig.link.connection_made(rig.wire)
    rig.add(0)
    rig.wire.frames()
    feed(rig.link, welcome(cluster="theirs"))
    assert "cluster theirs, not ours" in str(rig.answers[0][1])
    assert not rig.link.opened
    assert rig.wire.aborted
    assert not rig.wire.writes


async def test_the_reason_that_a_bookie_gives_is_the_error_of_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    rig.add(0)
    closing = messages.encode_failure(messages.Failure(messages.CODE_UNAVAILABLE, "is stopping"))
    feed(rig.link, protocol.encode_frame(protocol.CLOSING, 0, 0, closing))
    assert not rig.answers
    rig.link.connection_lost(ConnectionResetError("reset"))
    assert "the connection ended: is stopping" in str(rig.answers[0][1])


@pytest.mark.parametrize(("lost", "text"), [(None, "ended"), (OSError("reset"), "ended: reset")])
async def test_the_end_of_a_connection_is_the_error_of_what_waits(
    monkeypatch: pytest.MonkeyPatch, lost: OSError | None, text: str
) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    rig.add(0)
    asking = asyncio.ensure_future(rig.link.request(protocol.PING, 0, b""))
    await turns()
    rig.link.connection_lost(lost)
    assert str(rig.answers[0][1]).endswith(text)
    with pytest.raises(BookieUnavailable, match=text):
        await asking
    with pytest.raises(BookieUnavailable, match=text):
        await rig.link.request(protocol.PING, 0, b"")
    assert not rig.owner.connected
    assert rig.timers.live() == []
    rig.link.connection_lost(None)
    assert len(rig.answers) == 1
    feed(rig.link, protocol.encode_added(0, 1, 1))
    assert len(rig.answers) == 1


async def test_a_connection_that_comes_after_the_end_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
    rig.link.close(ENDED)
    rig.link.connection_made(rig.wire)
    assert rig.wire.closed
    assert not rig.wire.writes


async def test_requests_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "REQUESTS_PENDING_MAX", 3)
    rig = LinkRig(monkeypatch)
    rig.open()
    asked = [asyncio.ensure_future(rig.link.request(protocol.PING, 0, b"")) for _ in range(3)]
    await turns()
    with pytest.raises(BookieUnavailable, match="3 requests to answer already"):
        await rig.link.request(protocol.PING, 0, b"")
    feed(rig.link, protocol.encode_frame(protocol.PONG, 0, 2))
    asked.append(asyncio.ensure_future(rig.link.request(protocol.PING, 0, b"")))
    await turns()
    assert [frame.id for frame in rig.wire.frames() if isinstance(frame, Frame)] == [1, 2, 3, 4]
    for id_ in (1, 3, 4):
        feed(rig.link, protocol.encode_frame(protocol.PONG, 0, id_))
    answers = await asyncio.gather(*asked)
    assert [answer.id for answer in answers] == [1, 2, 3, 4]


async def test_a_bookie_that_reads_nothing_is_asked_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "UNSENT_BYTES_MAX", 1000)
    rig = LinkRig(monkeypatch)
    rig.open()
    rig.wire.unsent_bytes = 1001
    with pytest.raises(BookieUnavailable, match="1001 bytes are unsent"):
        await rig.link.request(protocol.PING, 0, b"")
    rig.wire.unsent_bytes = 1000
    asking = asyncio.ensure_future(rig.link.request(protocol.PING, 0, b""))
    await turns()
    feed(rig.link, protocol.encode_frame(protocol.PONG, 0, 1))
    await asking


async def test_an_answer_to_a_request_that_was_never_made_ends_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    asking = asyncio.ensure_future(rig.link.request(protocol.PING, 0, b""))
    await turns()
    feed(rig.link, protocol.encode_frame(protocol.PONG, 0, 1))
    await asking
    feed(rig.link, protocol.encode_frame(protocol.PONG, 0, 1))
    assert rig.link.error is None, "an answer may come after its request was given up"
    feed(rig.link, protocol.encode_frame(protocol.PONG, 0, 2))
    assert rig.link.error is not None


async def test_draining_ends_with_the_last_add(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    await asyncio.wait_for(rig.link.drained(), 1)
    rig.add(0)
    rig.add(1)
    drained = asyncio.ensure_future(rig.link.drained())
    await turns()
    feed(rig.link, protocol.encode_added(0, 1, 1))
    await turns()
    assert not drained.done()
    feed(rig.link, protocol.encode_added(0, 2, 1))
    await asyncio.wait_for(drained, 1)


async def test_draining_ends_with_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LinkRig(monkeypatch)
    rig.open()
    rig.add(0)
    drained = [asyncio.ensure_future(rig.link.drained()) for _ in range(2)]
    await turns()
    drained[0].cancel()
    await turns()
    rig.link.close(ENDED)
    await asyncio.wait_for(drained[1], 1)
    await asyncio.wait_for(rig.link.settled(), 1)


async def test_who_waits_for_the_welcome_is_woken_by_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
    waiting = asyncio.ensure_future(rig.link.settled())
    await turns()
    assert not waiting.done()
    rig.link.close(ENDED)
    await asyncio.wait_for(waiting, 1)


async def test_a_list_that_its_owner_uses_again_is_sent_as_it_is_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LinkRig(monkeypatch)
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
    rig.link.close(ENDED)


async def test_a_bookie_that_was_closed_before_it_was_used_is_not_used() -> None:
    bookie = RemoteBookie(IDENTITY, HOST, 1)
    await bookie.close()
    with pytest.raises(BookieUnavailable, match="not used any more"):
        await bookie.ping()
    assert not bookie.connected
