"""Requests of one connection besides adds: bounds, fences, and their answers."""

import pytest

from magnetar.bookie.api import LedgerEnd, LedgerFenced
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net import requests as requests_module
from magnetar.bookie.net.protocol_v1 import Entries, Frame
from magnetar.bookie.packed import pack

from .client_rig import feed, turns
from .connection_rig import Rig


async def test_requests_run_up_to_the_bound_and_then_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_module, "REQUESTS_RUNNING_MAX", 2)
    monkeypatch.setattr(requests_module, "REQUESTS_WAITING_MAX", 2)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    for id_ in range(1, 6):
        rig.read(id_)
    (refused,) = await rig.said()
    assert isinstance(refused, Frame)
    assert (refused.kind, refused.id) == (protocol.FAILED, 5)
    assert messages.decode_failure(refused.payload).code == messages.CODE_UNAVAILABLE
    assert [asked[1][1] for asked in rig.bookie.begun] == [1, 2]
    rig.bookie.gates[1].set()
    assert await rig.ids() == [2]
    assert [asked[1][1] for asked in rig.bookie.begun] == [1, 2, 3]
    rig.bookie.open = True
    for gate in rig.bookie.gates:
        gate.set()
    assert sorted(await rig.ids()) == [1, 3, 4]


async def test_answers_of_running_requests_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_module, "ANSWER_BYTES_MAX", 1000)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    rig.read(1, 600)
    rig.read(2, 400)
    rig.read(3, 1)
    await turns()
    assert len(rig.bookie.begun) == 2
    rig.bookie.gates[0].set()
    assert await rig.ids() == [1]
    assert len(rig.bookie.begun) == 3
    rig.read(4, 600)
    await turns()
    assert len(rig.bookie.begun) == 3
    for gate in rig.bookie.gates:
        gate.set()
    await turns()
    assert len(rig.bookie.begun) == 4
    rig.bookie.gates[3].set()
    assert sorted(await rig.ids()) == [2, 3, 4]
    rig.read(5, 5000)
    await turns()
    assert len(rig.bookie.begun) == 5, "one always runs"
    rig.bookie.gates[4].set()


async def test_answer_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.read(1, 1 << 60)
    await turns()
    assert rig.bookie.begun == [("read", (1, 1, 1, requests_module.READ_BYTES_MAX, False))]


async def test_requests_of_a_peer_that_does_not_read_are_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.connection.pause_writing()
    rig.read(1)
    await turns()
    assert not rig.bookie.begun
    rig.connection.resume_writing()
    assert await rig.ids() == [1]


async def test_frames_behind_a_fence_are_handled_once_it_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    fence = messages.encode_ledger(1)
    group = pack([b"x"])
    add = protocol.encode_add(1, 1, -1, range(1), group, recovery=False)
    feed(
        rig.connection,
        protocol.encode_frame(protocol.LEDGER_END, protocol.FLAG_FENCE, 1, fence),
        add,
        *group.body,
    )
    assert not rig.bookie.adds
    assert not rig.wire.reading
    await turns()
    assert rig.bookie.begun == [("end", (1, True))]
    assert len(rig.bookie.adds) == 1, "it has begun, and need not have ended"
    assert rig.wire.reading
    rig.bookie.gates[0].set()
    (end,) = await rig.said()
    assert isinstance(end, Frame)
    assert messages.decode_end(end.payload) == LedgerEnd(3, 4, True, 5)


async def test_low_water_handles_no_frame_behind_a_waiting_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_module, "REQUESTS_RUNNING_MAX", 0)
    monkeypatch.setattr(requests_module, "FENCES_RUNNING_MAX", 0)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.say(protocol.LEDGER_END, 1, messages.encode_ledger(1), protocol.FLAG_FENCE)
    rig.add(1)
    for _ in range(2):
        rig.server._low()
        rig.connection.resume()
        await turns()
        assert not rig.bookie.adds
        assert not rig.wire.reading
    monkeypatch.setattr(requests_module, "REQUESTS_RUNNING_MAX", 1)
    rig.connection._requests.begin()
    await turns()
    assert rig.bookie.begun == [("end", (1, True))]
    assert len(rig.bookie.adds) == 1


async def test_fences_do_not_wait_for_reads_and_are_bounded_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_module, "REQUESTS_RUNNING_MAX", 1)
    monkeypatch.setattr(requests_module, "FENCES_RUNNING_MAX", 2)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    rig.read(1)
    for id_ in (2, 3, 4):
        rig.say(protocol.LEDGER_END, id_, messages.encode_ledger(id_), protocol.FLAG_FENCE)
        await turns()
    assert [asked[0] for asked in rig.bookie.begun] == ["read", "end", "end"]
    assert not rig.wire.reading, "a fence that has not begun holds what is behind it"
    rig.bookie.gates[1].set()
    await turns()
    assert [asked[0] for asked in rig.bookie.begun] == ["read", "end", "end"], "it stands in line"
    rig.bookie.gates[0].set()
    await turns()
    assert [asked[0] for asked in rig.bookie.begun] == ["read", "end", "end", "end"]
    assert rig.wire.reading
    rig.bookie.open = True
    for gate in rig.bookie.gates:
        gate.set()
    assert sorted(await rig.ids()) == [1, 2, 3, 4]


async def test_fencing_read_waits_for_the_bound_of_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_module, "ANSWER_BYTES_MAX", 1000)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    rig.read(1, 600)
    rig.read(2, 400, protocol.FLAG_FENCE)
    await turns()
    assert len(rig.bookie.begun) == 2
    rig.read(3, 1, protocol.FLAG_FENCE)
    await turns()
    assert len(rig.bookie.begun) == 2
    assert not rig.wire.reading
    rig.bookie.gates[0].set()
    await turns()
    assert len(rig.bookie.begun) == 3
    assert rig.bookie.begun[2][1][-1] is True
    for gate in rig.bookie.gates:
        gate.set()
    assert sorted(await rig.ids()) == [1, 2, 3]


async def test_every_request_is_answered_by_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.say(protocol.DELETE, 1, messages.encode_ledger(7))
    rig.say(protocol.CONFIRM, 2, messages.encode_confirm([(5, 6)]))
    rig.say(protocol.PROVE, 3, messages.encode_prove(1, 2, 9, 3))
    rig.say(protocol.INFO, 4)
    rig.say(50, 5)
    rig.read(6)
    result = {frame.id: frame for frame in await rig.said() if isinstance(frame, Frame | Entries)}
    assert rig.bookie.begun[0] == ("delete", (7,))
    assert rig.bookie.begun[1] == ("confirm", ([(5, 6)],))
    kinds = {id_: frame.kind for id_, frame in result.items() if isinstance(frame, Frame)}
    assert kinds == {
        1: protocol.DELETED,
        2: protocol.CONFIRMED,
        3: protocol.PROOFS,
        4: protocol.STATE,
        5: protocol.FAILED,
    }
    proofs = result[3]
    unknown = result[5]
    assert isinstance(proofs, Frame)
    assert isinstance(unknown, Frame)
    proven = messages.decode_proofs(proofs.payload)
    assert [proof.entry_id for proof in proven.proofs] == [2, 3, 4]
    assert proven.next_entry == 5
    assert messages.decode_failure(unknown.payload).code == messages.CODE_UNKNOWN_KIND
    assert result[6] == Entries(0, 6, range(6, 7), [b"x"])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (LedgerFenced("fenced"), messages.CODE_FENCED),
        (ValueError("no range"), messages.CODE_BOOKIE_ERROR),
        (RuntimeError("a bug"), messages.CODE_BOOKIE_ERROR),
    ],
)
async def test_failed_request_is_answered(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, code: int
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.fault = fault
    rig.read(1)
    rig.say(protocol.LEDGER_END, 2, messages.encode_ledger(1), protocol.FLAG_FENCE)
    frames = [frame for frame in await rig.said() if isinstance(frame, Frame)]
    assert sorted(frame.id for frame in frames) == [1, 2]
    assert {messages.decode_failure(frame.payload).code for frame in frames} == {code}
    assert not rig.ended
    rig.bookie.fault = None
    rig.read(3)
    assert await rig.ids() == [3]


async def test_proofs_run_in_steps_up_to_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "PROVE_STEP_IDS", 4)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.say(protocol.PROVE, 1, messages.encode_prove(1, 0, 9, 100))
    (answer,) = await rig.said()
    assert isinstance(answer, Frame)
    assert [asked[1] for asked in rig.bookie.begun] == [(1, 0, 9, 4), (1, 4, 9, 4), (1, 8, 9, 4)]
    proven = messages.decode_proofs(answer.payload)
    assert [proof.entry_id for proof in proven.proofs] == list(range(10))
    assert proven.next_entry == 10
    rig.bookie.begun.clear()
    rig.bookie.open = False
    rig.say(protocol.PROVE, 2, messages.encode_prove(1, 0, 9, 100))
    await turns()
    rig.timers.now += requests_module.PROVE_TIME_S
    rig.bookie.gates[0].set()
    (answer,) = await rig.said()
    assert isinstance(answer, Frame)
    assert messages.decode_proofs(answer.payload).next_entry == 4
    assert len(rig.bookie.begun) == 1


@pytest.mark.parametrize(("count_max", "proven"), [(0, 1), (1, 1), (3, 3), (11, 10)])
async def test_proof_covers_the_requested_number_of_entries(
    monkeypatch: pytest.MonkeyPatch, count_max: int, proven: int
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.say(protocol.PROVE, 1, messages.encode_prove(1, 0, 9, count_max))
    (answer,) = await rig.said()
    assert isinstance(answer, Frame)
    assert messages.decode_proofs(answer.payload).next_entry == proven


async def test_pages_come_from_one_snapshot_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()

    async def page(after: int, count: int) -> tuple[list[int], bool]:
        rig.say(protocol.LIST, 1, messages.encode_list(after, count))
        (answer,) = await rig.said()
        assert isinstance(answer, Frame)
        ids, more = messages.decode_ledgers(answer.payload)
        return list(ids), more

    rig.bookie.ledgers = [0, 1, 2, 3, 4]
    assert await page(-1, 1) == ([0], True)
    rig.bookie.ledgers = [0, 1, 2]
    assert await page(0, 2) == ([1, 2], True)
    assert await page(2, 2) == ([3, 4], False)
    assert len(rig.bookie.begun) == 1
    assert await page(-1, 3) == ([0, 1, 2], False)
    assert await page(-1, 0) == ([0], True)
    rig.bookie.ledgers = [9]
    assert await page(-1, 5) == ([9], False), "a first page is of the list as it is"
    rig.bookie.ledgers = [8]
    assert await page(0, 5) == ([8], False), "nothing is kept behind the last page"
