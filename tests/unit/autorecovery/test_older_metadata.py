"""Metadata of an older backup, which names bookies that have dropped their copies since."""

import pytest
from tests.unit.autorecovery.stage import Stage, run
from tests.unit.autorecovery.test_former_copies import LAST, Collector, end

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.metadata import LedgerState, ledger_key
from magnetar.metadata.records import encode


def test_metadata_of_an_older_backup_deletes_nothing() -> None:
    """The record names `a b c`; the entries are on `d e f`."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d", "e", "f")
        before = await stage.ledger(1, (0, "a b c"), last=LAST)
        await stage.ledger(1, (0, "d e f"), last=LAST)
        for name in "abc":
            await stage.by_name[name].drop_copies([1])
        await stage.store.put(ledger_key(1), encode(before))
        collectors = [Collector(stage, name) for name in "def"]
        for _ in range(3):
            for collector in collectors:
                await collector.start()
                assert await collector.once() == []
        for name in "def":
            assert stage.by_name[name].holds(1)
        for collector in collectors:
            await collector.session.stop()
        await stage.stop()

    run(main)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_an_open_ledger_of_an_older_backup_is_not_closed_without_its_entries(copies: int) -> None:
    """If it were closed as empty, the bookies with its entries would delete them."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d", "e", "f")
        before, after = ["a", "b", "c"][:copies], ["d", "e", "f"][:copies]
        backup = await stage.ledger(
            1, (0, " ".join(before)), last=LAST, write_quorum=copies, state=LedgerState.OPEN
        )
        await stage.ledger(1, (0, " ".join(after)), last=LAST, write_quorum=copies)
        for name in before:
            await stage.by_name[name].drop_copies([1])
        await stage.store.put(ledger_key(1), encode(backup))
        client = LedgerClient(stage.store, stage.bookies, stage.clock)
        with pytest.raises(RecoveryFailed):
            await client.open(1, recover=True)
        collector = Collector(stage, "d")
        await collector.start()
        for _ in range(3):
            assert await collector.once() == []
        assert stage.by_name["d"].holds(1)
        await client.close()
        await end(collector)

    run(main)
