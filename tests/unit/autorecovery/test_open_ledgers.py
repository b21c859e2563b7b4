"""Open ledgers: their writers may act first, and closing them loses no receipted entry."""

import asyncio

import pytest
from tests.unit.autorecovery.stage import Stage, names_of, run

from magnetar.bookie.api import LedgerFenced
from magnetar.core.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerState
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter


def client_on(stage: Stage, *, ensemble: int = 3, write: int = 2, ack: int = 2) -> LedgerClient:
    settings = LedgerSettings(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    return LedgerClient(stage.store, stage.bookies, stage.clock, settings)


async def append(writer: LedgerWriter, *entries: bytes) -> int:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_appended(first: int, error: MagnetarError | None) -> None:
        if error is None:
            done.set_result(first)
        else:
            done.set_exception(error)

    writer.append(list(entries), on_appended)
    return await done


def test_an_open_ledger_on_living_bookies_is_not_changed() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        client = client_on(stage)
        writer = await client.create({})
        await append(writer, b"one")
        await stage.node()
        await asyncio.sleep(300)
        assert await append(writer, b"two") == 1
        assert (await stage.metadata(writer.ledger_id)).state is LedgerState.OPEN
        await client.close()
        await stage.stop()

    run(main)


def test_a_writer_that_replaces_a_lost_bookie_itself_is_not_disturbed() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        client = client_on(stage)
        writer = await client.create({})
        await append(writer, *[b"entry %d" % number for number in range(10)])
        await stage.node()
        await asyncio.sleep(20)
        lost = writer.bookies[0]
        stage.bookies.lose(stage.by_name[lost.bookie_id])
        await append(writer, b"on")
        await asyncio.sleep(300)
        assert await append(writer, b"and on") == 11
        metadata = await stage.metadata(writer.ledger_id)
        assert metadata.state is LedgerState.OPEN
        # Autorecovery copies the entries of the earlier ensemble, which the writer left.
        assert all(lost not in ensemble.bookies for ensemble in metadata.ensembles)
        assert (await stage.check(writer.ledger_id)).verdict == "healthy"
        closed = await writer.close()
        assert closed.last_entry == 11
        assert (await stage.check(writer.ledger_id)).verdict == "healthy"
        await client.close()
        await stage.stop()

    run(main)


def test_an_orphaned_ledger_is_closed_after_the_grace_time_and_repaired() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=20, state=LedgerState.OPEN)
        node = await stage.node()
        await asyncio.sleep(20)
        stage.bookies.lose(stage.by_name["a"])
        await asyncio.sleep(30)
        assert (await stage.metadata(1)).state is LedgerState.OPEN
        await asyncio.sleep(60)
        metadata = await stage.metadata(1)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 20)
        assert "a" not in " ".join(text for _, text in names_of(metadata))
        assert (await stage.check(1)).verdict == "healthy"
        assert await stage.listed() == {}
        assert node.stats.outcomes.get("failed", 0) == 0
        await stage.stop()

    run(main)


def test_an_unfinished_recovery_is_finished() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=5, state=LedgerState.IN_RECOVERY)
        await stage.node()
        await asyncio.sleep(120)
        metadata = await stage.metadata(1)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 5)
        assert await stage.listed() == {}
        await stage.stop()

    run(main)


def test_closing_an_empty_head_ledger_loses_no_receipted_entry() -> None:
    """apache/pulsar#26074: the living owner takes the ledger for open and continues to write."""

    async def main() -> None:
        stage = Stage("a", "b")
        client = client_on(stage, ensemble=2)
        writer = await client.create({})
        ledger_id = writer.ledger_id
        await stage.node()
        await asyncio.sleep(20)
        # The owner does not see the loss, and no bookie could replace the lost one.
        client._context.bookies.remove_listener(client._bookie_lost)
        stage.bookies.lose(stage.by_name["a"])
        stage.bookies.add("c")
        await asyncio.sleep(120)
        ended = await stage.metadata(ledger_id)
        assert (ended.state, ended.last_entry) == (LedgerState.CLOSED, -1)
        with pytest.raises(MagnetarError):
            await append(writer, b"must not be receipted")
        with pytest.raises(LedgerFenced):
            await append(writer, b"nor this")
        # The owner continues in another ledger, whose receipted entries are readable.
        after = await client.create({})
        assert after.ledger_id > ledger_id
        assert await append(after, b"receipted") == 0
        await after.close()
        reader = await client.open(after.ledger_id, recover=False)
        assert [entry.data for entry in await reader.read(0, 0, bytes_max=100)] == [b"receipted"]
        stage.bookies._listeners.append(client._bookie_lost)
        await client.close()
        await stage.stop()

    run(main)


def test_a_ledger_written_with_too_few_bookies_is_repaired_when_a_bookie_registers() -> None:
    async def main() -> None:
        stage = Stage("a")
        client = client_on(stage, ensemble=2, write=2, ack=1)
        writer = await client.create({})
        await append(writer, *[b"entry %d" % number for number in range(10)])
        await writer.close()
        assert (await stage.check(writer.ledger_id)).verdict == "too few proven copies"
        await stage.node()
        await asyncio.sleep(120)
        stage.bookies.add("b")
        await asyncio.sleep(120)
        assert (await stage.check(writer.ledger_id)).verdict == "healthy"
        assert names_of(await stage.metadata(writer.ledger_id)) == [(0, "a b")]
        await client.close()
        await stage.stop()

    run(main)
