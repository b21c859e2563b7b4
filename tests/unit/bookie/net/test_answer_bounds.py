"""Bounds of single answers of a bookie, and what a drained connection still answers."""

from collections.abc import Sequence

import pytest

from magnetar.bookie.api import StoredEntry
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net import requests as requests_module
from magnetar.bookie.net.protocol_v1 import AnyFrame, Entries, Frame

from .client_rig import turns
from .connection_rig import Rig
from .peers import IDENTITY


def only(frames: Sequence[AnyFrame], kind: int) -> Frame:
    (frame,) = frames
    assert isinstance(frame, Frame)
    assert frame.kind == kind
    return frame


async def test_an_answer_holds_no_more_entries_than_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Empty entries count no bytes; no client decodes an answer with more of them."""
    monkeypatch.setattr(requests_module, "ENTRIES_PER_GROUP_MAX", 3)
    rig = Rig(monkeypatch)
    await rig.hello()

    async def read_entries(*_: object, **__: object) -> list[StoredEntry]:
        return [StoredEntry(entry_id, b"") for entry_id in range(5)]

    monkeypatch.setattr(rig.bookie, "read_entries", read_entries)
    rig.say(protocol.READ, 1, messages.encode_read(1, 0, 9, 100))
    (answer,) = await rig.said()
    assert isinstance(answer, Entries)
    assert list(answer.entry_ids) == [0, 1, 2]


async def test_a_proof_covers_no_more_entries_than_its_answer_may_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "PROOFS_MAX", 3)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.say(protocol.PROVE, 1, messages.encode_prove(1, 0, 9, 5))
    proven = messages.decode_proofs(only(await rig.said(), protocol.PROOFS).payload)
    assert [proof.entry_id for proof in proven.proofs] == [0, 1, 2]
    assert proven.next_entry == 3


async def test_a_proof_ends_behind_the_last_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "PROVE_STEP_IDS", 4)
    rig = Rig(monkeypatch)
    await rig.hello()
    for last in (3, 4):
        rig.say(protocol.PROVE, 1, messages.encode_prove(1, 0, last, 100))
        proven = messages.decode_proofs(only(await rig.said(), protocol.PROOFS).payload)
        assert proven.next_entry == last + 1


async def test_a_page_holds_no_more_ledgers_than_its_frame_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "LEDGERS_PER_PAGE_MAX", 2)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.say(protocol.LIST, 1, messages.encode_list(-1, 5))
    page, more = messages.decode_ledgers(only(await rig.said(), protocol.LEDGERS).payload)
    assert (list(page), more) == ([1, 2], True)


async def test_pages_count_as_answers_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    page_bytes = 8 * protocol.LEDGERS_PER_PAGE_MAX
    monkeypatch.setattr(requests_module, "ANSWER_BYTES_MAX", 2 * page_bytes)
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    for id_ in (1, 2, 3):
        rig.say(protocol.LIST, id_, messages.encode_list(-1, 5))
    await turns()
    assert len(rig.bookie.begun) == 2, "the third would exceed the bound"
    rig.bookie.gates[0].set()
    await turns()
    assert len(rig.bookie.begun) == 3
    rig.bookie.open = True
    for gate in rig.bookie.gates:
        gate.set()
    assert len(await rig.ids()) == 3


async def test_a_drained_connection_answers_the_fence_that_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    await rig.hello()
    rig.bookie.open = False
    rig.say(protocol.LEDGER_END, 1, messages.encode_ledger(1), protocol.FLAG_FENCE)
    await turns()
    assert rig.bookie.begun == [("end", (1, True))]
    rig.connection.drain("stopping")
    only(await rig.said(), protocol.CLOSING)
    assert not rig.ended
    rig.bookie.gates[0].set()
    only(await rig.said(), protocol.END)
    assert rig.ended


@pytest.mark.parametrize(("known", "asked", "agreed"), [(3, 1, 1), (1, 3, 1), (3, 4, 0)])
async def test_a_welcome_names_the_features_of_both_ends(
    monkeypatch: pytest.MonkeyPatch, known: int, asked: int, agreed: int
) -> None:
    monkeypatch.setattr(messages, "FEATURES", known)
    rig = Rig(monkeypatch)
    hello = messages.Hello(IDENTITY, "ours", features=asked)
    rig.say(protocol.HELLO, 0, messages.encode_hello(hello))
    welcome = messages.decode_welcome(only(await rig.said(), protocol.WELCOME).payload)
    assert welcome.features == agreed
