"""The effect of limits on drawn logs: the cursors that count, their moves, and the deletions."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.broker.lifecycle.limits import KEEPS_ALL, KEEPS_NOTHING, Limits
from magnetar.broker.lifecycle.outcome import Outcome, consumed_rank, outcome, slowest
from magnetar.broker.lifecycle.quota import Quota, QuotaAction, QuotaType
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo

NOW_MS = 1_000_000
ENTRIES = 10
SIZE = QuotaType.SIZE
AGE = QuotaType.AGE


class Marks:
    """A cursor of which each entry up to its mark is acknowledged, and perhaps one more."""

    def __init__(self, entry: int, *, durable: bool = True, also: int | None = None) -> None:
        self.durable = durable
        self.mark_delete = Position(entry // ENTRIES, entry % ENTRIES)
        self._entry, self._also = entry, also

    def unacked_up_to(self, position: Position) -> int:
        end = position.ledger_id * ENTRIES + position.entry_id
        unacked = range(self._entry + 1, end + 1)
        return len(unacked) - (self._also in unacked)

    def mark_delete_after(self, position: Position) -> Position:
        end = position.ledger_id * ENTRIES + position.entry_id
        if self._also == end + 1:
            end += 1
        return Position(end // ENTRIES, end % ENTRIES)


class Times:
    """One entry a second; the first came at 0."""

    async def oldest_ms(self, after: Position) -> int | None:
        number = after.ledger_id * ENTRIES + after.entry_id + 1
        return number * 1000 if number < 3 * ENTRIES else None

    async def older_end(self, before_ms: int, after: Position) -> Position | None:
        number = min((before_ms - 1) // 1000, 3 * ENTRIES - 1)
        end = Position(number // ENTRIES, number % ENTRIES)
        return end if number >= 0 and end > after else None


def index_of() -> LedgerIndex:
    """Two closed ledgers and an open one, of ten entries of 10 bytes each."""
    index = LedgerIndex()
    for number in range(3):
        index.add(LedgerInfo(number, 1, entries=ENTRIES, size_bytes=100, closed_ms=int(number < 2)))
    return index


def predicted(
    cursors: Mapping[str, Marks], limits: Limits, now_ms: int = NOW_MS, **how: Any
) -> Outcome:
    return asyncio.run(outcome(index_of(), cursors, limits, Times(), now_ms, **how))


def going(found: Outcome) -> tuple[int, int, int]:
    return found.ledgers, found.entries, found.size_bytes


def quota(kind: QuotaType, limit: int, action: QuotaAction = QuotaAction.EVICT) -> Limits:
    return Limits(KEEPS_ALL, 0, (Quota(kind, limit, action),))


# -- deletion


@pytest.mark.parametrize(
    ("marks", "ledgers"),
    [
        ({}, 2),
        ({"s": Marks(-1)}, 0),
        ({"s": Marks(8)}, 0),
        ({"s": Marks(9)}, 1),
        ({"s": Marks(18)}, 1),
        ({"s": Marks(19)}, 2),
        ({"s": Marks(29)}, 2),
        ({"s": Marks(19), "behind": Marks(9)}, 1),
        ({"s": Marks(19), "reader": Marks(-1, durable=False)}, 2),
    ],
)
def test_what_all_durable_subscriptions_have_passed_goes(
    marks: dict[str, Marks], ledgers: int
) -> None:
    found = predicted(marks, Limits(KEEPS_NOTHING))
    assert going(found) == (ledgers, 10 * ledgers, 100 * ledgers)
    assert (found.expires, found.evicts, found.blocks_producers) == ({}, {}, False)


def test_nothing_goes_where_a_cursor_cannot_be_read_or_compaction_has_not_passed() -> None:
    limits = Limits(KEEPS_NOTHING)
    assert going(predicted({}, limits, deletes=False)) == (0, 0, 0)
    for place, ledgers in (
        (EARLIEST, 0),
        (Position(0, 8), 0),
        (Position(0, 9), 1),
        (Position(1, 9), 2),
        (Position(2, 9), 2),
    ):
        assert predicted({}, limits, trim_limit=place).ledgers == ledgers
    assert predicted({"s": Marks(9)}, limits, trim_limit=Position(1, 9)).ledgers == 1


# -- what expires


@pytest.mark.parametrize(
    ("now_ms", "expires"),
    [
        (60_000, {}),
        (60_001, {"a": 1}),
        (65_000, {"a": 5, "b": 1, "c": 1}),
        (65_001, {"a": 6, "b": 2, "c": 1}),
    ],
)
def test_what_is_older_than_the_ttl_expires_for_each_that_has_not_acknowledged_it(
    now_ms: int, expires: dict[str, int]
) -> None:
    cursors = {"a": Marks(-1), "b": Marks(3), "c": Marks(3, durable=False, also=5), "d": Marks(9)}
    found = predicted(cursors, Limits(KEEPS_ALL, 60), now_ms)
    assert found.expires == expires
    assert predicted(cursors, Limits(KEEPS_ALL, 0), now_ms).expires == {}
    assert predicted({}, Limits(KEEPS_ALL, 60), now_ms).expires == {}


def test_what_expires_lets_ledgers_go_and_so_does_what_was_acknowledged_behind_it() -> None:
    limits = Limits(KEEPS_NOTHING, 60)
    assert predicted({"s": Marks(-1)}, limits, 69_001).ledgers == 1
    assert predicted({"s": Marks(-1)}, limits, 69_000).ledgers == 0
    assert predicted({"s": Marks(-1, also=9)}, limits, 69_000).ledgers == 1


# -- quotas


@pytest.mark.parametrize("action", [QuotaAction.HOLD, QuotaAction.EXCEPTION])
@pytest.mark.parametrize(("limits_at", "blocks"), [((SIZE, 200), True), ((SIZE, 201), False)])
def test_producers_are_kept_away_by_the_slowest_durable_subscription(
    limits_at: tuple[QuotaType, int], blocks: bool, action: QuotaAction
) -> None:
    cursors = {
        "slow": Marks(9),
        "fast": Marks(25),
        "reader": Marks(-1, durable=False),
    }
    found = predicted(cursors, quota(*limits_at, action))
    assert (found.blocks_producers, found.evicts) == (blocks, {})
    reader = {"reader": Marks(-1, durable=False)}
    assert not predicted(reader, quota(SIZE, 0, action)).blocks_producers
    assert not predicted({}, quota(SIZE, 0, action)).blocks_producers


def test_an_eviction_by_size_leaves_nine_tenths_and_takes_it_from_durable_ones_alone() -> None:
    cursors = {"slow": Marks(-1), "fast": Marks(15), "reader": Marks(-1, durable=False)}
    found = predicted(cursors, quota(SIZE, 200))
    assert found.evicts == {"slow": 12}
    assert not found.blocks_producers
    found = predicted(cursors, quota(SIZE, 100))
    assert found.evicts == {"slow": 21, "fast": 5}


def test_an_eviction_by_age_takes_what_is_older_than_nine_tenths_of_the_limit() -> None:
    cursors = {"slow": Marks(-1), "fast": Marks(9)}
    assert predicted(cursors, quota(AGE, 20), 20_000).evicts == {}
    # Of exactly 18 s ago is the third: it stays.
    assert predicted(cursors, quota(AGE, 20), 20_001).evicts == {"slow": 3}
    assert predicted(cursors, quota(AGE, 20, QuotaAction.HOLD), 20_001).blocks_producers
    assert not predicted(cursors, quota(AGE, 20, QuotaAction.HOLD), 20_000).blocks_producers


def test_quotas_are_looked_at_behind_what_has_expired_and_counted_beside_it() -> None:
    limits = Limits(KEEPS_ALL, 60, (Quota(SIZE, 200, QuotaAction.HOLD),))
    cursors = {"s": Marks(-1)}
    assert predicted(cursors, limits, 70_000).blocks_producers, "200 bytes are left: the limit"
    assert not predicted(cursors, limits, 71_000).blocks_producers
    limits = Limits(KEEPS_ALL, 60, (Quota(SIZE, 200, QuotaAction.EVICT),))
    found = predicted(cursors, limits, 65_000)
    assert (found.expires, found.evicts) == ({"s": 5}, {"s": 7})
    twice = (Quota(SIZE, 200, QuotaAction.EVICT), Quota(AGE, 10, QuotaAction.EVICT))
    found = predicted(cursors, Limits(KEEPS_ALL, 0, twice), 24_001)
    assert found.evicts == {"s": 16}


# -- marks


def test_the_slowest_and_the_consumed_are_those_of_durable_marks() -> None:
    cursors = [Marks(5), Marks(3), Marks(1, durable=False)]
    assert slowest(cursors) == Position(0, 3)
    assert slowest(cursors[2:]) is None
    assert slowest([]) is None
    index = index_of()
    assert consumed_rank(index, [Position(1, 4), Position(0, 3)]) == 4
    assert consumed_rank(index, []) == index.rank_end == 30
