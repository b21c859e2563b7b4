"""What a topic queues while it has no ledger: what counts towards the bound, and for how long."""

from collections.abc import Sequence

import pytest
from tests.support.held_store import HeldStore, puts
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.stage import NAME, Appends, Stage, publish, turns

from magnetar.core.errors import MetadataError, PersistenceError
from magnetar.managed_ledger.errors import TooManyPendingBytes
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.store import Operation

BOUND_BYTES = 100
SETTINGS = ManagedLedgerSettings(pending_bytes_max=BOUND_BYTES)


async def test_what_failed_counts_no_more_towards_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    ledger = await stage.factory(SETTINGS).open(NAME)

    async def refused(_: Sequence[Operation]) -> int:
        raise MetadataError("refused")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(stage.store, "transact", refused)
            with pytest.raises(MetadataError):
                await publish(ledger, bytes(BOUND_BYTES))
    await publish(ledger, bytes(BOUND_BYTES))


async def test_what_failed_in_one_ledger_counts_towards_the_bound_until_it_is_in_the_next() -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    ledger = await stage.factory(SETTINGS).open(NAME)
    first, _ = await publish(ledger, b"x")
    stage.bookie.refuse = lambda ledger_id, _ids: ledger_id == first
    creation = store.hold(puts(MANAGED_LEDGERS_PREFIX))
    appends = Appends()
    for label in range(2):  # both are on their way when the first of them fails
        ledger.append([bytes(BOUND_BYTES // 2)], appends.labelled(label))
    await creation.reached.wait()
    ledger.append([b"y"], appends.labelled(2))
    creation.go.set()
    assert [(label, type(error)) for label, _, error in await appends.wait(3)] == [
        (0, type(None)),
        (1, type(None)),
        (2, TooManyPendingBytes),
    ]
    await publish(ledger, bytes(BOUND_BYTES))


async def test_a_refusal_is_answered_behind_the_group_that_was_on_its_way() -> None:
    stage = Stage()
    settings = ManagedLedgerSettings(rollover_bytes_max=5, rollover_ms_min=0, pending_bytes_max=10)
    ledger = await stage.factory(settings).open(NAME)
    appends = Appends()
    stage.bookie.hold = True
    ledger.append([bytes(5)], appends.labelled(0))
    while ledger.state != "LedgerOpened":
        await turns(1)
    for label in (1, 2, 3):  # the ledger is full; the last would still fit into the next one
        ledger.append([bytes(11 if label == 2 else 1)], appends.labelled(label))
    await turns(50)
    assert appends.results == []
    stage.bookie.release()
    await turns(50)
    assert [(label, first, type(error)) for label, first, error in appends.results] == [
        (0, 0, type(None)),
        (1, 0, type(None)),  # in the next ledger
        (2, -1, TooManyPendingBytes),
        (3, -1, TooManyPendingBytes),
    ]
    assert (await publish(ledger, b"x"))[1] == 1


def test_a_refusal_that_fails_with_what_was_before_it_holds_up_nothing_later() -> None:
    """A group that waits for a refusal gets its own ledger, as does each later one."""

    async def main() -> None:
        stage = Stage()
        settings = ManagedLedgerSettings(
            rollover_bytes_max=5, rollover_ms_min=0, pending_bytes_max=10
        )
        ledger = await stage.factory(settings).open(NAME)
        appends = Appends()
        stage.bookie.hold = True
        ledger.append([bytes(5)], appends.labelled(0))
        while ledger.state != "LedgerOpened":
            await turns(1)
        for label in (1, 2):
            ledger.append([bytes(11)], appends.labelled(label))
        await ledger.roll_over()  # the ledger cannot be closed while its bookie hangs
        assert [(label, type(error)) for label, _, error in appends.results] == [
            (0, PersistenceError),
            (1, PersistenceError),
            (2, TooManyPendingBytes),
        ]
        stage.bookie.release()
        places = [await publish(ledger, b"x") for _ in range(3)]
        ledger_id, first = places[0]
        assert places == [(ledger_id, first + number) for number in range(3)]

    virtual(main())


async def test_a_group_above_the_bound_is_not_overtaken_and_gets_a_ledger() -> None:
    """Deduplication would take the first one for a duplicate when its client resends it."""
    ledger = await Stage().factory(SETTINGS).open(NAME)
    appends = Appends()
    for label, size in enumerate((BOUND_BYTES + 1, 1, 0)):
        ledger.append([bytes(size)], appends.labelled(label))
    assert [(label, first, type(error)) for label, first, error in await appends.wait(3)] == [
        (0, 0, type(None)),
        (1, -1, TooManyPendingBytes),
        (2, -1, TooManyPendingBytes),
    ]
    assert (await publish(ledger, b"x"))[1] == 1
