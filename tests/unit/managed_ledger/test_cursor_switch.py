"""A cursor whose switch to a new ledger was not answered in time: the old ledger is done with."""

import pytest
from tests.support.late_store import LateStore
from tests.unit.ledger.stage import Stage, turns
from tests.unit.managed_ledger.cursor_stage import reopened, start

from magnetar.core.errors import PersistenceError
from magnetar.managed_ledger import cursor_log


class LateSwitch(LateStore):
    """Its next write of the cursor's record that comes alone is answered late."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        if self.armed and key.startswith("/managed-ledgers-cursors/"):
            self.armed = False
            self.hold()
        return await super().put(key, value, expected=expected, lease_id=lease_id)


@pytest.mark.parametrize("answered", [True, False], ids=["answered late", "not answered"])
async def test_acks_after_an_unanswered_switch_are_not_written_to_the_old_ledger(
    answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the record names is read by the next owner: an ack receipted elsewhere is undone.

    The state has grown meanwhile, so that the old ledger would not be too large for it.
    """
    stage = Stage()
    stage.store = store = LateSwitch()
    monkeypatch.setattr(cursor_log, "LEDGER_BYTES_MIN", 2_000)
    factory, _, cursor, ledger_id = await start(stage, 2_000)
    for entry_id in range(20):
        cursor.ack(ledger_id, entry_id)
        await cursor.flush()
    for entry_id in range(100, 1_900, 3):
        cursor.ack(ledger_id, entry_id)
    monkeypatch.setattr(cursor_log, "WRITE_TIMEOUT_S", 0.05)
    for entry_id in range(1_901, 1_999):
        cursor.ack_batch(ledger_id, entry_id, 1 << 80, 100)
        if cursor.log is not None and not cursor.log.ready:
            break
        await cursor.flush()
    assert cursor.log is not None
    assert not cursor.log.ready, "it is to be rolled next"
    store.armed = True
    with pytest.raises(PersistenceError):
        await cursor.flush()
    monkeypatch.setattr(cursor_log, "WRITE_TIMEOUT_S", 20.0)
    if answered:
        store.answering.set()
        await turns(20)
    cursor.ack(ledger_id, 1_950)
    durable: list[object] = []
    cursor.when_durable(durable.append)
    await turns(40)
    store.answering.set()
    await cursor.flush()
    assert durable == [None], "it was receipted"
    await factory.abandon()
    again = await reopened(stage)
    assert again.is_acked(ledger_id, 1_950)
    assert again.is_acked(ledger_id, 100)
