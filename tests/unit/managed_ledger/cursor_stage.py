"""A topic with entries and a cursor before them, and its state after a crash."""

from tests.unit.ledger.stage import NAME, Stage, publish

from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger


async def start(
    stage: Stage, entries: int = 20
) -> tuple[ManagedLedgerFactory, ManagedLedger, Cursor, int]:
    """A topic with entries in one ledger and a cursor before them."""
    factory = stage.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    ledger_id, _ = await publish(ledger, *(b"%d" % number for number in range(entries)))
    return factory, ledger, cursor, ledger_id


async def reopened(stage: Stage) -> Cursor:
    return (await stage.factory().open(NAME)).cursors["sub"]


async def cursor_ledgers(stage: Stage, ledger: ManagedLedger) -> list[int]:
    """The ledgers on the bookie that hold no entries of the topic."""
    data = {info.ledger_id for info in ledger.ledgers}
    return [i for i in await stage.bookie.list_ledgers() if i not in data]
