"""Terminating a log while the metadata store does not answer, or while the log is closed."""

import asyncio

import pytest
from tests.support.held_store import HeldStore, puts
from tests.unit.ledger.stage import NAME, Stage, publish, turns

from magnetar.core.errors import TopicTerminated
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX
from magnetar.metadata.store import MetadataUnavailable

WITHIN_S = 20.0
RECORD = puts(MANAGED_LEDGERS_PREFIX)

LANDED = pytest.mark.parametrize("landed", [True, False], ids=["recorded", "not recorded"])


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.managed_ledger.TERMINATE_RETRY_S", 0.001)


async def opened() -> tuple[Stage, HeldStore, ManagedLedgerFactory, ManagedLedger]:
    stage = Stage()
    stage.store = store = HeldStore()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    await publish(ledger, b"x")
    return stage, store, factory, ledger


@LANDED
async def test_a_termination_that_failed_refuses_everybody_and_is_recorded_later(
    landed: bool,
) -> None:
    stage, store, factory, ledger = await opened()
    store.lose(RECORD, lands=landed)
    with pytest.raises(MetadataUnavailable):
        await ledger.terminate()
    assert ledger.terminated, "for those who attach"
    with pytest.raises(TopicTerminated):
        await publish(ledger, b"y")
    assert ledger.terminated_at is None, "consumers hear of the end when it is on record"
    told = asyncio.Event()
    ledger.add_append_listener(told.set)
    store.away = False
    async with asyncio.timeout(WITHIN_S):
        await told.wait()
    assert ledger.terminated_at == ledger.last_confirmed
    assert not ledger.fenced
    await factory.abandon()
    assert (await stage.factory().open(NAME)).terminated_at == ledger.last_confirmed


async def test_an_end_that_cannot_be_recorded_is_retried_and_by_one_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "magnetar.managed_ledger")
    _, store, factory, ledger = await opened()
    store.lose(RECORD, lands=False)
    for _ in range(3):
        with pytest.raises(MetadataUnavailable):
            await ledger.terminate()
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert sum(name.endswith(f"terminate {NAME}") for name in names) == 1
    async with asyncio.timeout(WITHIN_S):  # its first attempt fails as well
        while "termination not recorded, will retry" not in caplog.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    told = asyncio.Event()
    ledger.add_append_listener(told.set)
    store.away = False
    async with asyncio.timeout(WITHIN_S):
        await told.wait()
    assert ledger.terminated_at == ledger.last_confirmed
    await factory.close()


@LANDED
async def test_a_termination_that_failed_can_be_repeated(landed: bool) -> None:
    _, store, factory, ledger = await opened()
    store.lose(RECORD, lands=landed)
    with pytest.raises(MetadataUnavailable):
        await ledger.terminate()
    store.away = False
    assert await ledger.terminate() == ledger.last_confirmed
    assert ledger.terminated_at == ledger.last_confirmed
    await factory.close()


async def test_closing_records_the_end_of_a_log_that_is_being_terminated() -> None:
    """With all that was appended before: recovery would find it behind the end."""
    stage, _, factory, ledger = await opened()
    stage.bookie.hold = True
    appending = asyncio.ensure_future(publish(ledger, b"y"))
    await turns()
    terminating = asyncio.ensure_future(ledger.terminate())
    await turns()
    closing = asyncio.ensure_future(ledger.close())
    await turns(50)
    assert not closing.done()
    stage.bookie.release()
    await closing
    last = await appending
    assert await terminating == last
    again = await factory.open(NAME)
    assert again.terminated_at == last
    assert again.last_confirmed == last
    await factory.close()


async def test_closing_records_the_end_where_a_termination_failed() -> None:
    _, store, factory, ledger = await opened()
    store.lose(RECORD, lands=False)
    with pytest.raises(MetadataUnavailable):
        await ledger.terminate()
    store.away = False
    await ledger.close()
    assert (await factory.open(NAME)).terminated_at == ledger.last_confirmed
    await factory.close()
