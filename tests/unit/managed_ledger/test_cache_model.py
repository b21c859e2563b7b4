"""The entry cache against a model of added and evicted entries: contents, bytes, bounds."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.managed_ledger.cache import ENTRY_OVERHEAD_BYTES, CachedRun, CacheStats, EntryCache

TOKEN_BYTES = 300
COMPACT_ENTRIES = 4


@pytest.fixture(autouse=True, scope="module")
def small_bounds() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magnetar.managed_ledger.cache.TOKEN_BYTES_MAX", TOKEN_BYTES)
        patch.setattr("magnetar.managed_ledger.cache._COMPACT_ENTRIES_MIN", COMPACT_ENTRIES)
        yield None


class Model:
    def __init__(self, size_bytes_max: int) -> None:
        self.cache = EntryCache(size_bytes_max)
        self.runs: list[tuple[CachedRun, int, list[bytes]]] = []
        self.added = self.forgotten = 0
        for number in range(3):
            self.begin(number)

    def begin(self, number: int) -> None:
        first = 5 * number
        self.runs.append((CachedRun(number, first), first, []))

    def add(self, which: int, sizes: list[int]) -> None:
        run, _, all_data = self.runs[which]
        entries = [bytes([len(all_data) % 250]) * size for size in sizes]
        before = [each.size for each, _, _ in self.runs]
        self.cache.add(run, entries, sum(sizes))
        all_data += entries
        cost = sum(sizes) + len(sizes) * ENTRY_OVERHEAD_BYTES
        self.added += cost
        if sum(before) + cost <= self.cache.size_bytes_max:
            assert [each.size for each, _, _ in self.runs] == [
                size + cost * (number == which) for number, size in enumerate(before)
            ]

    def forget(self, which: int) -> None:
        run = self.runs[which][0]
        self.forgotten += run.size if not run.forgotten else 0
        size = self.cache.size_bytes - (run.size if not run.forgotten else 0)
        self.cache.forget(run)
        self.cache.forget(run)
        assert self.cache.size_bytes == size
        assert len(run) == 0
        del self.runs[which]
        self.begin(which)
        self.runs.insert(which, self.runs.pop())

    def check(self, rng: Random) -> None:
        cache = self.cache
        assert 0 <= cache.size_bytes <= cache.size_bytes_max
        assert cache.size_bytes == sum(run.size for run, _, _ in self.runs)
        assert cache.evicted_bytes == self.added - self.forgotten - cache.size_bytes
        alive = [token for token in cache._fifo if not token.run.forgotten]
        assert len(cache._fifo) <= 2 * len(alive) + 1
        stats = cache.stats()
        assert (stats.size_bytes, stats.evicted_bytes) == (cache.size_bytes, cache.evicted_bytes)
        for run, first, data in self.runs:
            assert run.next_entry == first + len(data)
            cached = data[len(data) - len(run) :]
            assert run.size == sum(map(len, cached)) + len(cached) * ENTRY_OVERHEAD_BYTES
            kept_from = run.next_entry - len(cached)
            assert len(run._data) <= max(2 * len(cached), COMPACT_ENTRIES) + len(cached)
            for start in range(first - 1, run.next_entry + 2):
                count, size_max = rng.randrange(1, 5), rng.randrange(0, 400)
                found = run.read(start, count, size_max)
                if not kept_from <= start < run.next_entry:
                    assert found is None
                    continue
                assert found is not None
                wanted = data[start - first :][:count]
                fitting = 1
                while fitting < len(wanted) and sum(map(len, wanted[: fitting + 1])) <= size_max:
                    fitting += 1
                assert [one.data for one in found] == wanted[:fitting]
                assert run.read_bytes == sum(map(len, wanted[:fitting]))
                assert [one.entry_id for one in found] == list(range(start, start + fitting))
                assert {one.ledger_id for one in found} == {run.ledger_id}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([0, 400, 1500, 4000]))
def test_what_is_cached_is_the_end_of_what_was_added(seed: int, size_bytes_max: int) -> None:
    rng = Random(seed)
    model = Model(size_bytes_max)
    for _ in range(25):
        if rng.random() < 0.12:
            model.forget(rng.randrange(3))
        else:
            sizes = [rng.choice((0, 1, 40, 90, 250)) for _ in range(rng.randrange(1, 5))]
            model.add(rng.randrange(3), sizes)
        model.check(rng)


def test_entries_leave_only_where_there_are_too_many_bytes() -> None:
    entry = b"x" * (TOKEN_BYTES - ENTRY_OVERHEAD_BYTES)
    cache, run = EntryCache(2 * TOKEN_BYTES), CachedRun(7, 0)
    for _ in range(2):
        cache.add(run, [entry], len(entry))
    assert (len(run), cache.size_bytes, cache.evicted_bytes) == (2, 2 * TOKEN_BYTES, 0)
    cache.add(run, [b""], 0)
    assert (len(run), cache.evicted_bytes) == (2, TOKEN_BYTES)
    cache.hits, cache.misses = 5, 7
    cache.hit_bytes, cache.missed_bytes = 50, 70
    assert cache.stats() == CacheStats(
        size_bytes=TOKEN_BYTES + ENTRY_OVERHEAD_BYTES,
        size_bytes_max=2 * TOKEN_BYTES,
        hits=5,
        hit_bytes=50,
        misses=7,
        missed_bytes=70,
        evictions=1,
        evicted_entries=1,
        evicted_bytes=TOKEN_BYTES,
    )
    assert run.read(0, 1, 1) is None
    assert run.read(1, 9, 1 << 20) is not None


def test_neighbours_share_a_token_up_to_its_bytes() -> None:
    cache, run = EntryCache(1 << 20), CachedRun(7, 0)
    for _ in range(6):
        cache.add(run, [b"x" * 52], 52)  # 100 bytes with what an object takes
    assert run.tokens == len(cache._fifo) == 2
    other = CachedRun(8, 0)
    cache.add(other, [b"x" * 52], 52)
    cache.add(run, [b"x" * 52], 52)
    assert (run.tokens, other.tokens) == (3, 1)
    cache.forget(run)
    assert [token.run for token in cache._fifo] == [other]
    assert cache.size_bytes == 100
