"""Autorecovery as a whole, in virtual time: lost copies are found, restored, or named."""

import asyncio

from tests.unit.autorecovery.stage import Stage, data_of, names_of, run

from magnetar.autorecovery.records import RecordState, UnderReplicated, record_key
from magnetar.autorecovery.repair.next_step import OutcomeKind
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import LedgerMetadata, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_record

DAY_MS = 86_400_000


def test_a_lost_bookie_is_replaced_after_the_delay_and_not_before() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=50)
        await stage.node()
        await asyncio.sleep(60)
        assert await stage.listed() == {}
        stage.bookies.lose(stage.by_name["b"])
        await asyncio.sleep(8)
        assert names_of(await stage.metadata(1)) == [(0, "a b c")]
        await asyncio.sleep(30)
        assert names_of(await stage.metadata(1)) == [(0, "a d c")]
        assert await stage.listed() == {}
        assert (await stage.check(1)).verdict == "healthy"
        await stage.stop()

    run(main)


def test_a_bookie_that_returns_in_time_causes_no_copies() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=50)
        node = await stage.node()
        await asyncio.sleep(60)
        stage.bookies.lose(stage.by_name["b"])
        await asyncio.sleep(7)
        stage.bookies.back(stage.by_name["b"])
        await asyncio.sleep(600)
        assert names_of(await stage.metadata(1)) == [(0, "a b c")]
        assert (node.stats.entries_copied, node.stats.audits) == (0, 1)
        await stage.stop()

    run(main)


def test_an_empty_disk_under_an_old_name_is_another_bookie() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b c"), last=50)
        await stage.node()
        await asyncio.sleep(60)
        stage.bookies.lose(stage.by_name["b"])
        wiped = stage.bookies.add("b", incarnation="2")
        await asyncio.sleep(60)
        (ensemble,) = (await stage.metadata(1)).ensembles
        assert ensemble.bookies[1] == BookieIdentity("b", "2")
        assert all(wiped.holds(1)[entry] == data_of(1, entry) for entry in wiped.holds(1))
        assert (await stage.check(1)).verdict == "healthy"
        await stage.stop()

    run(main)


def test_a_ledger_without_a_replacement_is_parked_until_a_bookie_registers() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b c"), last=50)
        node = await stage.node()
        await asyncio.sleep(20)
        stage.bookies.lose(stage.by_name["b"])
        await asyncio.sleep(3600)
        record = (await stage.listed())[1]
        assert (record.state, record.attempts) == (RecordState.PARKED, 1)
        assert "no bookie can replace bookie b" in record.detail
        assert node.health().ok
        stage.by_name["d"] = stage.bookies.add("d")
        await asyncio.sleep(60)
        assert names_of(await stage.metadata(1)) == [(0, "a d c")]
        assert await stage.listed() == {}
        await stage.stop()

    run(main)


def test_lost_entries_are_named_with_every_bookies_answer_and_not_changed() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        a, b = stage.by_name["a"], stage.by_name["b"]
        await stage.ledger(1, (0, "a b c"), last=8)
        await stage.node()
        await asyncio.sleep(20)
        a.corrupt.add((1, 3))
        stage.bookies.lose(b)
        await asyncio.sleep(1500)
        record = (await stage.listed())[1]
        assert (record.state, record.attempts) == (RecordState.LOST, 1)
        ((first, last, answers),) = [
            (entries.first, entries.last, entries.answers) for entries in record.lost
        ]
        assert (first, last) == (3, 3)
        assert {answer.bookie.bookie_id: answer.text for answer in answers} == {
            "a": "corrupt",
            "b": "not registered",
        }
        # All other entries are repaired, and the lost entry keeps its bookies, which may return.
        assert names_of(await stage.metadata(1)) == [(0, "a d c"), (3, "a b c"), (4, "a d c")]
        assert (await stage.check(1)).entries_wrong == 1
        stage.bookies.back(b)
        await asyncio.sleep(120)
        assert (await stage.check(1)).verdict == "healthy"
        assert await stage.listed() == {}
        await stage.stop()

    run(main)


def test_entries_on_a_bookie_that_is_only_away_are_not_lost() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        a, b = stage.by_name["a"], stage.by_name["b"]
        await stage.ledger(1, (0, "a b"), last=8)
        await stage.node()
        await asyncio.sleep(60)
        a.corrupt.add((1, 3))
        stage.bookies.lose(b)
        wrong = UnderReplicated(1, ("read, and wrong",), stage.clock.now_ms(), prove=True)
        await stage.store.put(record_key(1), encode_record(wrong))
        await asyncio.sleep(2)
        record = (await stage.listed())[1]
        assert (record.state, record.attempts) == (RecordState.WAITING, 1)
        assert "bookie b (1): not registered" in record.detail
        stage.bookies.back(b)
        await asyncio.sleep(30)
        assert (await stage.check(1)).verdict == "healthy"
        assert await stage.listed() == {}
        await stage.stop()

    run(main)


def test_wrong_copies_that_a_full_check_finds_are_rewritten() -> None:
    async def main() -> None:
        settings = AutorecoverySettings(check_interval_s=3600)
        stage = Stage("a", "b", "c", settings=settings)
        a, b = stage.by_name["a"], stage.by_name["b"]
        await stage.ledger(1, (0, "a b c"), last=20)
        await stage.ledger(1002, (0, "b c a"), last=20)
        await stage.node()
        a.corrupt.add((1, 3))
        b.drop(1002, 0)
        await asyncio.sleep(1800)
        assert (await stage.check(1)).verdict == "too few proven copies"
        await asyncio.sleep(3600)
        assert (await stage.check(1)).verdict == "healthy"
        assert (await stage.check(1002)).verdict == "healthy"
        assert await stage.listed() == {}
        await stage.stop()

    run(main)


def test_two_nodes_share_the_work_and_one_audits() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        for ledger_id in range(1, 60):
            await stage.ledger(ledger_id, (0, "a b c"), last=10)
        nodes = [await stage.node(1), await stage.node(2)]
        await asyncio.sleep(20)
        assert sorted(node.stats.auditor for node in nodes) == [False, True]
        stage.bookies.lose(stage.by_name["a"])
        await asyncio.sleep(60)
        for ledger_id in range(1, 60):
            assert names_of(await stage.metadata(ledger_id)) == [(0, "d b c")]
        assert await stage.listed() == {}
        assert all(node.stats.entries_copied for node in nodes)
        await stage.stop()

    run(main)


def test_another_node_succeeds_an_auditor_that_dies() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=10)
        nodes = [await stage.node(1), await stage.node(2)]
        await asyncio.sleep(20)
        dead = next(at for at, node in enumerate(nodes) if node.stats.auditor)
        await nodes[dead].stop()
        await stage.sessions[dead].stop()
        stage.bookies.lose(stage.by_name["a"])
        await asyncio.sleep(60)
        assert names_of(await stage.metadata(1)) == [(0, "d b c")]
        await stage.stop()

    run(main)


def test_a_ledger_that_is_deleted_during_the_repair_leaves_no_copies() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=10)
        d = stage.by_name["d"]
        await stage.node()
        await asyncio.sleep(20)
        stage.bookies.lose(stage.by_name["a"])
        await d.added.wait()
        await stage.store.delete(ledger_key(1))
        await asyncio.sleep(60)
        assert await d.list_ledgers() == []
        assert await stage.listed() == {}
        await stage.stop()

    run(main)


def test_a_record_that_changed_during_the_repair_is_read_again() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=10)
        await stage.node()
        await asyncio.sleep(20)
        stage.bookies.lose(stage.by_name["a"])
        await stage.by_name["d"].added.wait()
        metadata: LedgerMetadata = await stage.metadata(1)
        metadata.properties["changed"] = "yes"
        await stage.store.put(ledger_key(1), encode(metadata))
        await asyncio.sleep(60)
        after = await stage.metadata(1)
        assert after.properties == {"changed": "yes"}
        assert names_of(after) == [(0, "d b c")]
        assert (await stage.check(1)).verdict == "healthy"
        await stage.stop()

    run(main)


def test_a_draining_bookie_is_emptied_and_used_as_a_source() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=20)
        await stage.node()
        stage.by_name["b"].corrupt.add((1, 1))
        await asyncio.sleep(20)
        stage.bookies.drain(stage.by_name["c"])
        await asyncio.sleep(60)
        assert names_of(await stage.metadata(1)) == [(0, "a b d")]
        # Entry 1 was on b and c; b's copy is corrupt, so it was read from c.
        assert stage.by_name["d"].holds(1)[1] == data_of(1, 1)
        await stage.stop()

    run(main)


def test_a_silent_source_is_tried_a_bounded_number_of_times() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=20)
        node = await stage.node()
        await asyncio.sleep(20)
        stage.by_name["b"].silent = True
        stage.bookies.lose(stage.by_name["a"])
        await asyncio.sleep(1500)
        record = (await stage.listed())[1]
        assert (record.state, record.attempts) == (RecordState.PARKED, stage.settings.attempts_max)
        assert "could not be read" in record.detail
        assert node.stats.outcomes["failed"] == stage.settings.attempts_max
        await stage.stop()

    run(main)


def test_nodes_with_different_clocks_pause_between_attempts() -> None:
    """Each node takes the time that the other wrote for that of a wrong clock."""

    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b c"), last=5)
        nodes = [await stage.node(0), await stage.node(1, ahead_ms=DAY_MS)]
        await asyncio.sleep(60)
        stage.bookies.lose(stage.by_name["b"])
        await asyncio.sleep(1)
        listed = UnderReplicated(1, ("tried",), since_ms=0)
        await stage.store.put(record_key(1), encode_record(listed))
        await asyncio.sleep(5)
        waits = sum(node.stats.outcomes.get(OutcomeKind.WAITS, 0) for node in nodes)
        assert 0 < waits <= 2 * (5 + 1)
        await stage.stop()

    run(main)
