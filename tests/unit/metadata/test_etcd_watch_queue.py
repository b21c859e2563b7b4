"""What a watch on etcd takes from its stream: each change once, in order, and bounded."""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.tasks import TaskSet
from magnetar.metadata.etcd import watch_stream as watching
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.client import EtcdClient
from magnetar.metadata.etcd.endpoints import HEADERS
from magnetar.metadata.etcd.errors import MetadataRefused
from magnetar.metadata.etcd.keys import Keys
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.etcd.watch_stream import EtcdWatch, WatchStream
from magnetar.metadata.store import Compacted, EventKind, Record, StoreClosed, WatchEvent

FIRST = 8


@pytest.fixture
async def stream() -> AsyncIterator[WatchStream]:
    """Returns a stream without a connection: the test passes what it receives."""
    client = EtcdClient(EtcdSettings(endpoints=["127.0.0.1:1"], root="/r"), Random(1))
    yield WatchStream(client, Keys("/r"), TaskSet("test"))
    await client.close()


def watch_on(stream: WatchStream, prefix: str = "/") -> EtcdWatch:
    """A watch that etcd has created."""
    serial = len(stream._watches) + 1
    watch = EtcdWatch(stream, serial, prefix, FIRST)
    stream._watches[serial] = watch
    assert stream._creation(watch) is not None
    receive(stream, pb.WatchResponse(watch_id=watch.id, created=True))
    return watch


def receive(stream: WatchStream, response: pb.WatchResponse) -> None:
    stream._received(response, HEADERS)


def sent(stream: WatchStream) -> list[pb.WatchRequest]:
    """Returns the requests since the last call."""
    requests = [each() for each in stream._outgoing]
    stream._outgoing.clear()
    return [request for request in requests if request is not None]


def put(revision: int, value: bytes = b"", key: bytes = b"/r/a") -> pb.Event:
    return pb.Event(kv=pb.KeyValue(key=key, value=value, mod_revision=revision))


def events(watch: EtcdWatch, *found: int | pb.Event, fragment: bool = False) -> pb.WatchResponse:
    response = pb.WatchResponse(watch_id=watch.id, fragment=fragment)
    response.events.extend(put(each) if isinstance(each, int) else each for each in found)
    return response


def held(watch: EtcdWatch) -> list[int]:
    return [event.record.revision for event in watch._queue]


async def test_an_event_is_the_record_below_the_root_or_its_key_where_it_was_deleted(
    stream: WatchStream,
) -> None:
    watch = watch_on(stream)
    gone = pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=b"/r/b", mod_revision=9))
    receive(stream, events(watch, put(8, b"v"), gone))
    assert [await anext(watch), await anext(watch)] == [
        WatchEvent(EventKind.PUT, Record("/a", b"v", 8)),
        WatchEvent(EventKind.DELETE, Record("/b", b"", 9)),
    ]


async def test_progress_does_not_move_a_watch_that_waits_for_the_rest_of_a_revision(
    stream: WatchStream,
) -> None:
    watch = watch_on(stream)
    receive(stream, events(watch, 8, 9, fragment=True))
    receive(stream, pb.WatchResponse(watch_id=watch.id, header=pb.ResponseHeader(revision=30)))
    assert watch.next_revision == 9, "opened again now, it must get revision 9 whole"
    assert held(watch) == [8]
    receive(stream, events(watch, 9, 10))
    assert held(watch) == [8, 9, 9, 10]
    receive(stream, pb.WatchResponse(watch_id=watch.id, header=pb.ResponseHeader(revision=30)))
    assert watch.next_revision == 31
    receive(stream, pb.WatchResponse(watch_id=watch.id, header=pb.ResponseHeader(revision=20)))
    assert watch.next_revision == 31, "and never back"


async def test_what_was_held_back_when_the_stream_broke_comes_once(stream: WatchStream) -> None:
    watch = watch_on(stream)
    receive(stream, events(watch, 8, 8, fragment=True))
    watch.opened()
    request = stream._creation(watch)
    assert request is not None
    assert request.create_request.start_revision == 8
    receive(stream, events(watch, 8, 8, 9))
    assert held(watch) == [8, 8, 9]


@given(
    revisions=st.lists(st.integers(FIRST, FIRST + 6), min_size=1, max_size=20).map(sorted),
    cuts=st.sets(st.integers(1, 19)),
    breaks=st.sets(st.integers(0, 19)),
)
def test_fragments_and_breaks_anywhere_repeat_nothing_and_leave_nothing_out(
    revisions: list[int], cuts: set[int], breaks: set[int]
) -> None:
    """etcd sends all events from a revision on, in fragments that may split a revision."""

    async def scenario() -> None:
        client = EtcdClient(EtcdSettings(endpoints=["127.0.0.1:1"], root="/r"), Random(1))
        stream = WatchStream(client, Keys("/r"), TaskSet("test"))
        watch = watch_on(stream)
        numbered = [put(revision, str(at).encode()) for at, revision in enumerate(revisions)]
        for broken in [*sorted(breaks), None]:
            left = [each for each in numbered if each.kv.mod_revision >= watch.next_revision]
            ends = sorted({cut for cut in cuts if cut < len(left)} | {len(left)})
            for count, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if count == broken:
                    break
                piece = left[start:end]
                receive(stream, events(watch, *piece, fragment=end < len(left)))
            watch.opened()
            stream._creation(watch)
        values = [int(event.record.value) for event in watch._queue]
        assert values == list(range(len(revisions)))
        await client.close()

    asyncio.run(scenario())


async def test_a_watch_holds_no_more_than_its_bounds_and_the_revision_that_passed_them(
    stream: WatchStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCH_EVENTS_MAX", 3)
    watch = watch_on(stream)
    receive(stream, events(watch, 8, 9))
    assert sent(stream) == []
    receive(stream, events(watch, 10, 10, 10, 11))
    assert held(watch) == [8, 9, 10, 10, 10]
    (cancel,) = sent(stream)
    assert cancel.cancel_request.watch_id == 1
    assert (watch.next_revision, watch.paused) == (11, True)


async def test_a_watch_holds_no_more_bytes_than_its_bound(
    stream: WatchStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCH_BYTES_MAX", 100)
    watch = watch_on(stream)
    receive(stream, events(watch, put(8, bytes(99)), put(9, bytes(30)), put(10)))
    assert held(watch) == [8, 9]
    assert len(sent(stream)) == 1
    await anext(watch)
    (request,) = sent(stream)
    assert request.create_request.start_revision == 10
    receive(stream, events(watch, put(10, bytes(69)), put(11, bytes(1)), put(12)))
    assert held(watch) == [9, 10, 11], "what was read counts no more"


async def test_a_watch_that_rests_stays_closed_over_a_break_until_half_is_read(
    stream: WatchStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCH_EVENTS_MAX", 4)
    watch = watch_on(stream)
    receive(stream, events(watch, 8, 9, 10, 11, 12))
    sent(stream)
    watch.opened()
    stream.want(watch)
    assert sent(stream) == []
    for _ in range(2):
        await anext(watch)
        assert sent(stream) == []
    await anext(watch)
    (request,) = sent(stream)
    assert request.create_request.start_revision == 12
    assert (held(watch), watch.paused) == ([11], False)


async def test_a_watch_is_created_once_however_often_it_is_wanted(stream: WatchStream) -> None:
    watch = stream_watch = EtcdWatch(stream, 1, "/", FIRST)
    stream.want(watch)
    stream.want(stream_watch)
    (request,) = sent(stream)
    assert request.create_request.watch_id == watch.id == 1
    assert request.create_request.progress_notify
    assert request.create_request.fragment


async def test_a_watch_that_is_closed_before_it_was_requested_is_not_requested(
    stream: WatchStream,
) -> None:
    watch = EtcdWatch(stream, 1, "/", FIRST)
    stream.want(watch)
    watch.close()
    assert sent(stream) == []


async def test_a_closed_watch_is_taken_from_the_server_once_and_gets_nothing_more(
    stream: WatchStream,
) -> None:
    watch = watch_on(stream)
    response = events(watch, 9)
    receive(stream, events(watch, 8))
    for _ in range(2):
        watch.close()
    assert [each.cancel_request.watch_id for each in sent(stream)] == [1]
    receive(stream, response)
    assert held(watch) == []
    assert sent(stream) == []
    assert len(stream) == 0
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_the_first_reason_for_which_a_watch_ended_stands(stream: WatchStream) -> None:
    watch = watch_on(stream)
    receive(stream, events(watch, 8))
    watch.end(Compacted("first"))
    watch.end(StoreClosed("second"))
    assert watch.ended
    assert (await anext(watch)).record.revision == 8
    for _ in range(2):
        with pytest.raises(Compacted, match="first"):
            await anext(watch)


async def test_events_for_one_watch_are_no_others(stream: WatchStream) -> None:
    first, second = watch_on(stream, "/a"), watch_on(stream, "/b")
    receive(stream, events(second, 9))
    assert (held(first), held(second)) == ([], [9])
    assert first.next_revision == FIRST


async def test_only_the_creation_that_is_answered_is_taken_from_those_under_way(
    stream: WatchStream,
) -> None:
    watches = [EtcdWatch(stream, number, f"/{number}", FIRST) for number in (1, 2, 3)]
    for watch in watches:
        stream._creation(watch)
    receive(stream, pb.WatchResponse(watch_id=1, created=True))
    receive(stream, events(watches[0], 8))
    refused = pb.WatchResponse(watch_id=-1, created=True, canceled=True, cancel_reason="denied")
    receive(stream, refused)
    receive(stream, pb.WatchResponse(watch_id=3, created=True))
    assert [watch.ended for watch in watches] == [False, True, False]
    receive(stream, events(watches[2], 8))
    assert held(watches[2]) == [8]
    with pytest.raises(MetadataRefused, match="watch of '/2': denied"):
        await anext(watches[1])


@pytest.mark.parametrize("canceled", [False, True])
async def test_a_watch_whose_past_is_compacted_ends_after_what_it_holds(
    stream: WatchStream, canceled: bool
) -> None:
    """It must list again: to go on silently would leave changes out."""
    watch = watch_on(stream)
    receive(stream, events(watch, 8))
    receive(stream, pb.WatchResponse(watch_id=watch.id, canceled=canceled, compact_revision=20))
    assert (await anext(watch)).record.revision == 8
    with pytest.raises(Compacted, match="revision 9 is compacted; watch from 20"):
        await anext(watch)
    assert sent(stream) == []
    assert len(stream) == 0


async def test_what_is_awaited_may_still_come(
    stream: WatchStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCH_EVENTS_MAX", 1)
    watch = watch_on(stream)
    assert not watch.awaits(FIRST - 1)
    assert watch.awaits(FIRST)
    receive(stream, events(watch, 8))
    assert not watch.awaits(8)
    assert watch.awaits(9)
    receive(stream, events(watch, 9))
    assert not watch.awaits(9), "it rests"
    await anext(watch)
    assert watch.awaits(9)
    watch.close()
    assert not watch.awaits(9)


async def test_a_watch_without_references_costs_nothing(stream: WatchStream) -> None:
    watch: Any = watch_on(stream)
    late = events(watch, 8)
    del watch
    assert len(stream) == 0
    receive(stream, late)
    assert [each.cancel_request.watch_id for each in sent(stream)] == [1]
    receive(stream, late)
    assert sent(stream) == []
