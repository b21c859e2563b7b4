"""After a write of unknown outcome, the next write continues from the stored record."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.support.held_store import HeldStore
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.test_guarded import WRITES, Owner, acked, opened

from magnetar.core.errors import MagnetarError, TopicTerminated
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.errors import CursorClosed
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import NO_LEDGER

RECORDS = "/managed-ledgers"


def referenced(ledger: ManagedLedger) -> set[int]:
    """The ledgers that the topic's records name as their own."""
    logs = [cursor.log for cursor in ledger.cursors.values()]
    own = {log.ledger_id for log in logs if log is not None and log.ledger_id != NO_LEDGER}
    return own | {each.ledger_id for each in ledger.ledgers}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.managed_ledger.TERMINATE_RETRY_S", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.cursors.SETTLE_RETRY_S", 0.001)


@pytest.mark.parametrize(
    "then", ["new cursor", "cursor deleted", "terminated", "trimmed", "next ledger"]
)
@pytest.mark.parametrize("lost", WRITES)
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
async def test_a_lost_answer_costs_neither_the_topic_nor_a_ledger(
    lost: str, landed: bool, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    hasty = replace(SINGLE, metadata_timeout_s=0.01)
    client = LedgerClient(store, LocalBookies([stage.bookie]), stage.clock, hasty)
    monkeypatch.setattr(stage, "client", lambda: client)
    factory, ledger = await opened(stage, Owner(store))
    if lost != "cursor's ledger":
        await acked(ledger)  # which makes the ledger
    await publish(ledger, b"b")
    store.lose(lambda operation: operation.key.startswith(RECORDS), lands=landed)
    with pytest.raises(MagnetarError):
        await WRITES[lost](ledger)
    store.away = False
    # The first write may have ended the topic or the cursor that the second one is about.
    with suppress(TopicTerminated, CursorClosed, KeyError):
        await WRITES[then](ledger)
    assert not ledger.fenced
    await ledger.set_properties({"after": "both"})
    with suppress(TopicTerminated):
        await publish(ledger, b"c")
    await ledger.open_cursor("old")
    await ledger.open_cursor("last")
    assert not ledger.fenced
    entries = ledger.entries_total
    await factory.close()
    again = stage.factory()
    reopened = await again.open(NAME, create=False)
    assert reopened.entries_total == entries
    assert reopened.properties["after"] == "both"
    assert not reopened.broken_cursors
    for _ in range(20):
        await turns(20)
        if set(await stage.bookie.list_ledgers()) <= referenced(reopened):
            break
    assert set(await stage.bookie.list_ledgers()) <= referenced(reopened)
    await again.close()


@pytest.mark.parametrize("whose", ["the topic's", "the cursor's"])
async def test_a_ledger_that_was_created_without_an_answer_stays_empty_and_is_deleted(
    whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown which attempt created it, so it is not used; the next ledger is."""
    stage = Stage()
    stage.store = store = HeldStore()
    hasty = replace(SINGLE, metadata_timeout_s=0.01)
    client = LedgerClient(store, LocalBookies([stage.bookie]), stage.clock, hasty)
    monkeypatch.setattr(stage, "client", lambda: client)
    factory, ledger = await opened(stage, Owner(store))
    await ledger.roll_over()
    create, attempts = client.create, 0

    async def back_at_the_second(*given: Any, **more: Any) -> LedgerWriter:
        nonlocal attempts
        attempts += 1
        store.away = False
        return await create(*given, **more)

    monkeypatch.setattr(client, "create", back_at_the_second)
    store.lose(lambda operation: operation.key.startswith(RECORDS), lands=True)
    before = {record.key for record in await store.list("/ledgers/")}
    if whose == "the topic's":
        await publish(ledger, b"b")
    else:
        await acked(ledger)
    assert attempts == 3, "one without an answer, its repetition, and another ledger"
    assert not ledger.fenced
    entries = ledger.entries_total
    assert entries == (2 if whose == "the topic's" else 1)
    await ledger.set_properties({"a": "1"})
    await ledger.cursors["old"].set_properties({"a": "1"})
    await turns(60)
    assert len({record.key for record in await store.list("/ledgers/")} - before) == 1
    await factory.close()
    again = stage.factory()
    reopened = await again.open(NAME)
    assert reopened.entries_total == entries
    assert (reopened.cursors["old"].backlog == 0) is (whose != "the topic's")
    await turns(60)
    records = await store.list("/ledgers/")
    assert len(records) == len(referenced(reopened))
    await again.close()
