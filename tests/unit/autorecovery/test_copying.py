"""The copier: reads from a source, stores on the targets, and counts only proven copies."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.autorecovery.stage import Stage, data_of, run

from magnetar.autorecovery.copier import READ_OVER_GAP_ENTRIES, Copier, CopyResult, CopyTask
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.bookie.api import BookieError, BookieLate, EntryProofs, OnAdded, StoredEntry

LEDGER = 1


class Rig:
    """Bookies a and b, which hold the ledger, c and d, which hold nothing, and a copier."""

    def __init__(self, last: int = 9, settings: AutorecoverySettings | None = None) -> None:
        self.stage = Stage("a", "b", "c", "d", settings=settings)
        self.last = last
        for entry_id in range(last + 1):
            for name in "ab":
                self.stage.by_name[name].put(LEDGER, entry_id, data_of(LEDGER, entry_id), entry_id)
        self.stats = AutorecoveryStats(self.stage.clock, 100)
        rate = ByteRate(self.stage.settings.copy_bytes_per_s_max, self.stage.clock)
        self.copier = Copier(self.stage.bookies, self.stage.settings, rate, self.stats)
        self.reads: list[tuple[str, int, int]] = []
        for name in "ab":
            self._watch(name)

    def _watch(self, name: str) -> None:
        bookie = self.stage.by_name[name]
        read = bookie.read_entries

        async def noted(
            ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
        ) -> list[StoredEntry]:
            self.reads.append((name, first, last))
            return await read(ledger_id, first, last, bytes_max=bytes_max, fence=fence)

        bookie.read_entries = noted  # type: ignore[method-assign]

    def need(self, sources: str, targets: str) -> CopyTask:
        by_name = self.stage.by_name
        return CopyTask(
            tuple(by_name[name].identity for name in sources.split()),
            tuple(by_name[name].identity for name in targets.split()),
        )

    async def copy(self, needs: dict[int, CopyTask], done: CopyResult | None = None) -> CopyResult:
        done = done if done is not None else CopyResult()
        await self.copier.copy(LEDGER, needs, self.last, done)
        return done

    async def copy_all(self, sources: str, targets: str, ids: Sequence[int] = ()) -> CopyResult:
        ids = ids or range(self.last + 1)
        return await self.copy({entry_id: self.need(sources, targets) for entry_id in ids})

    def holds(self, name: str) -> list[int]:
        held = self.stage.by_name[name].holds(LEDGER)
        assert all(data == data_of(LEDGER, entry_id) for entry_id, data in held.items())
        return sorted(held)

    def answer(self, name: str, text: str) -> Answer:
        return Answer(self.stage.by_name[name].identity, text)


def test_a_copy_is_counted_once_each_target_has_proven_it() -> None:
    async def main() -> None:
        rig = Rig()
        done = await rig.copy_all("a b", "c d")
        assert rig.holds("c") == rig.holds("d") == list(range(10))
        size = sum(len(data_of(LEDGER, entry_id)) for entry_id in range(10))
        assert (done.entries, done.bytes, done.lost, done.refused) == (20, 2 * size, [], {})
        assert (rig.stats.entries_copied, rig.stats.bytes_copied) == (20, 2 * size)
        assert done.touched == {rig.stage.by_name[name].identity for name in "cd"}
        assert rig.reads == [("a", 0, 9)]

    run(main)


def test_one_read_spans_only_small_gaps() -> None:
    async def main() -> None:
        rig = Rig(last=40)
        near = [5, 5 + READ_OVER_GAP_ENTRIES]
        far = near[-1] + READ_OVER_GAP_ENTRIES + 1
        done = await rig.copy_all("a", "c", [far, *near])
        assert rig.reads == [("a", near[0], near[1]), ("a", far, far)]
        assert rig.holds("c") == [*near, far]
        assert done.entries == 3

    run(main)


def test_groups_are_as_large_as_the_settings_say() -> None:
    async def main() -> None:
        rig = Rig(settings=AutorecoverySettings(group_bytes_max=30))
        done = await rig.copy_all("a", "c")
        assert rig.holds("c") == list(range(10))
        assert len(rig.reads) > 2
        assert [first for _, first, _ in rig.reads] == sorted({first for _, first, _ in rig.reads})
        assert done.entries == 10

    run(main)


def test_an_entry_that_a_source_lacks_is_read_from_the_next() -> None:
    async def main() -> None:
        rig = Rig()
        first, second = rig.stage.by_name["a"], rig.stage.by_name["b"]
        first.drop(LEDGER, 4)
        first.corrupt.add((LEDGER, 7))
        second.drop(LEDGER, 2)
        done = await rig.copy_all("a b", "c")
        assert rig.holds("c") == list(range(10))
        assert (done.entries, done.lost) == (10, [])

    run(main)


def test_an_entry_that_no_source_returns_is_lost_with_every_answer() -> None:
    async def main() -> None:
        rig = Rig()
        first, second = rig.stage.by_name["a"], rig.stage.by_name["b"]
        first.drop(LEDGER, 4)
        second.corrupt.add((LEDGER, 4))
        first.corrupt.add((LEDGER, 0))
        second.drop(LEDGER, 0)
        done = await rig.copy_all("a b", "c")
        assert rig.holds("c") == [1, 2, 3, 5, 6, 7, 8, 9]
        assert done.lost == [
            (0, (rig.answer("a", "corrupt"), rig.answer("b", "no such entry"))),
            (4, (rig.answer("a", "no such entry"), rig.answer("b", "corrupt"))),
        ]

    run(main)


def test_sources_that_are_away_or_silent_are_reported_as_such() -> None:
    async def main() -> None:
        rig = Rig(last=3)
        rig.stage.bookies.lose(rig.stage.by_name["a"])
        rig.stage.by_name["b"].silent = True
        done = await rig.copy_all("a b", "c")
        assert [entry_id for entry_id, _ in done.lost] == [0, 1, 2, 3]
        expected = (rig.answer("a", "not registered"), rig.answer("b", "unavailable"))
        assert {answers for _, answers in done.lost} == {expected}
        assert rig.reads == [("b", 0, 3)], "one that is silent is asked once"
        assert done.touched == set()
        assert (await rig.copy({})).lost == []

    run(main)


def test_a_late_source_is_abandoned_and_reported() -> None:
    async def main() -> None:
        rig = Rig(last=3)
        failed: list[tuple[object, str]] = []
        rig.stage.bookies.failed = lambda identity, error: failed.append(  # type: ignore[method-assign]
            (identity, f"{type(error).__name__}: {error}")
        )

        async def late(*_: object, **__: object) -> list[StoredEntry]:
            await asyncio.Event().wait()
            return []

        rig.stage.by_name["a"].read_entries = late  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        done = await rig.copy_all("a b", "c")
        assert asyncio.get_running_loop().time() - began == rig.stage.settings.request_timeout_s
        assert rig.holds("c") == [0, 1, 2, 3]
        assert (done.entries, done.lost) == (4, [])
        assert failed == [
            (rig.stage.by_name["a"].identity, "BookieLate: bookie a did not answer within 30 s")
        ]

    run(main)


@pytest.mark.parametrize("given", [[], [1], [1, 2]])
def test_an_answer_with_other_entries_is_rejected(given: list[int]) -> None:
    async def main() -> None:
        rig = Rig(last=3)

        async def wrong_entries(*_: object, **__: object) -> list[StoredEntry]:
            return [StoredEntry(entry_id, b"of another") for entry_id in given]

        rig.stage.by_name["a"].read_entries = wrong_entries  # type: ignore[method-assign]
        done = await rig.copy_all("a b", "c", [0])
        assert rig.holds("c") == [0]
        assert done.lost == []
        done = await rig.copy_all("a", "d", [0])
        assert done.lost == [(0, (rig.answer("a", "unavailable"),))]

    run(main)


def test_a_target_that_fails_is_named_and_gets_no_more_entries() -> None:
    async def main() -> None:
        rig = Rig(last=40)
        full = rig.stage.by_name["c"]
        full.full = True
        done = await rig.copy_all("a", "c d", [0, 20, 40])
        assert done.refused == {full.identity: "full"}
        assert rig.holds("c") == []
        assert rig.holds("d") == [0, 20, 40]
        assert done.entries == 3
        full.full = False
        adds = full.adds
        await rig.copy({5: rig.need("a", "c d")}, done)
        assert full.adds == adds
        assert done.entries == 4

    run(main)


def test_a_target_that_is_not_registered_is_refused() -> None:
    async def main() -> None:
        rig = Rig(last=1)
        rig.stage.bookies.lose(rig.stage.by_name["c"])
        done = await rig.copy_all("a", "c")
        assert done.refused == {rig.stage.by_name["c"].identity: "not registered"}
        assert (done.entries, done.bytes) == (0, 0)

    run(main)


def test_a_target_that_never_answers_is_refused_after_its_time() -> None:
    async def main() -> None:
        rig = Rig(last=1)
        target = rig.stage.by_name["c"]
        failed: list[tuple[object, type]] = []
        rig.stage.bookies.failed = lambda identity, error: failed.append((identity, type(error)))  # type: ignore[method-assign]
        target.add_entries = lambda *_, **__: None  # type: ignore[method-assign]
        done = await rig.copy_all("a", "c")
        assert done.refused == {target.identity: "bookie c did not answer within 30 s"}
        other = rig.stage.by_name["d"]

        async def late(*_: object, **__: object) -> EntryProofs:
            await asyncio.Event().wait()
            return EntryProofs([], 0)

        other.prove_entries = late  # type: ignore[method-assign]
        done = await rig.copy_all("a", "d")
        assert done.refused == {other.identity: "bookie d did not answer within 30 s"}
        assert failed == [(target.identity, BookieLate), (other.identity, BookieLate)]
        assert done.entries == 0

    run(main)


@pytest.mark.parametrize("wrong", ["lost", "corrupt", "other data", "shorter"])
def test_a_wrongly_stored_copy_is_not_counted(wrong: str) -> None:
    async def main() -> None:
        rig = Rig()
        target = rig.stage.by_name["c"]
        add = target.add_entries

        def spoilt(
            ledger_id: int,
            entry_ids: Sequence[int],
            entries: Sequence[bytes],
            *,
            last_add_confirmed: int,
            on_added: OnAdded,
            recovery: bool = False,
        ) -> None:
            add(
                ledger_id,
                entry_ids,
                entries,
                last_add_confirmed=last_add_confirmed,
                on_added=on_added,
                recovery=recovery,
            )
            assert recovery, "a fence lets recovery pass"
            assert last_add_confirmed == rig.last
            held = target._ledgers[ledger_id].entries
            if wrong == "lost":
                del held[entry_ids[-1]]
            elif wrong == "corrupt":
                target.corrupt.add((ledger_id, entry_ids[0]))
            elif wrong == "shorter":
                held[entry_ids[3]] = held[entry_ids[3]][:-1]
            else:
                held[entry_ids[3]] = bytes(len(held[entry_ids[3]]))

        target.add_entries = spoilt  # type: ignore[method-assign]
        done = await rig.copy_all("a", "c")
        assert done.refused == {target.identity: "1 entries are not proven there"}
        assert (done.entries, rig.stats.entries_copied) == (0, 0)
        assert done.touched == {target.identity}

    run(main)


@pytest.mark.parametrize("step", [0, 3, 1])
def test_a_proof_in_several_answers_is_read_to_its_end(step: int) -> None:
    async def main() -> None:
        rig = Rig()
        target = rig.stage.by_name["c"]
        prove, asked = target.prove_entries, []

        async def pieces(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            asked.append((first, last, count_max))
            end = min(last, first + step - 1)
            if end < first:
                return EntryProofs([], first)
            proofs = await prove(ledger_id, first, end, count_max=count_max)
            return EntryProofs(proofs.proofs, end + 1)

        target.prove_entries = pieces  # type: ignore[method-assign]
        done = await rig.copy_all("a", "c")
        if step:
            assert done.entries == 10
            assert asked == [(first, 9, 10 - first) for first in range(0, 10, step)]
        else:
            assert done.refused == {target.identity: "its proof makes no progress"}
            assert asked == [(0, 9, 10)]

    run(main)


def test_a_target_whose_proof_fails_is_reported() -> None:
    async def main() -> None:
        rig = Rig(last=1)
        failed: list[tuple[object, str]] = []
        rig.stage.bookies.failed = lambda identity, error: failed.append((identity, str(error)))  # type: ignore[method-assign]
        target = rig.stage.by_name["c"]

        async def broken(*_: object, **__: object) -> EntryProofs:
            raise BookieError("the disk is broken")

        target.prove_entries = broken  # type: ignore[method-assign]
        done = await rig.copy_all("a", "c")
        assert done.refused == {target.identity: "the disk is broken"}
        assert failed == [(target.identity, "the disk is broken")]

    run(main)


def test_copies_go_no_faster_than_the_rate_and_hold_no_more_than_the_budget() -> None:
    async def main() -> None:
        size = sum(len(data_of(LEDGER, entry_id)) for entry_id in range(10))
        settings = AutorecoverySettings(
            copy_bytes_per_s_max=size, group_bytes_max=30, bytes_in_flight_max=1 << 20
        )
        rig = Rig(settings=settings)
        began = asyncio.get_running_loop().time()
        await rig.copy_all("a", "c d")
        assert 1.5 < asyncio.get_running_loop().time() - began <= 2
        assert rig.copier._budget.held == 0

    run(main)
