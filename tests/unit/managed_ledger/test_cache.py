"""The entry cache: by reference, in order, within its bytes."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.cache import ENTRY_OVERHEAD_BYTES, CachedRun, EntryCache
from magnetar.managed_ledger.entry import Entry


def add(cache: EntryCache, run: CachedRun, *entries: bytes) -> None:
    cache.add(run, list(entries), sum(map(len, entries)))


def test_entries_are_shared_not_copied() -> None:
    cache, run = EntryCache(1 << 20), CachedRun(7, 0)
    data = b"payload"
    add(cache, run, data)
    found = run.read(0, 10, 1000)
    assert found is not None
    assert found[0] == Entry(7, 0, data)
    assert found[0].data is data


def test_reads_stop_at_count_and_bytes_but_not_before_the_first() -> None:
    cache, run = EntryCache(1 << 20), CachedRun(7, 5)
    add(cache, run, b"aaaa", b"bb", b"c", b"dddd")
    ids = [[e.entry_id for e in run.read(5, n, size) or ()] for n, size in
           ((9, 99), (2, 99), (9, 6), (9, 7), (9, 1))]  # fmt: skip
    assert ids == [[5, 6, 7, 8], [5, 6], [5, 6], [5, 6, 7], [5]]
    assert run.read(4, 1, 99) is None
    assert run.read(9, 1, 99) is None


def test_the_oldest_of_all_topics_go_first() -> None:
    one, two = CachedRun(1, 0), CachedRun(2, 0)
    cache = EntryCache(3 * (60_000 + ENTRY_OVERHEAD_BYTES))
    entry = bytes(60_000)
    for run in (one, two, two):
        add(cache, run, entry)
        run.token = None  # each its own token
    assert one.read(0, 1, 1) is not None
    add(cache, two, entry)
    assert one.read(0, 1, 1) is None
    assert len(two) == 3
    assert cache.stats().evicted_bytes == 60_000 + ENTRY_OVERHEAD_BYTES


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 40_000)), max_size=60),
    st.sets(st.integers(0, 2), max_size=1),
)
def test_what_is_cached_is_a_tail_within_bounds(
    groups: list[tuple[int, int, int]], forgotten: set[int]
) -> None:
    cache = EntryCache(200_000)
    runs = [CachedRun(ledger_id, 0) for ledger_id in range(3)]
    logs: list[list[bytes]] = [[], [], []]
    for which, count, size in groups:
        entries = [bytes(size) for _ in range(count)]
        add(cache, runs[which], *entries)
        logs[which] += entries
        assert cache.size_bytes <= cache.size_bytes_max
    for which in forgotten:
        cache.forget(runs[which])
        cache.forget(runs[which])
    held = 0
    for run, log in zip(runs, logs, strict=True):
        first = len(log) - len(run)
        tail = [] if first == len(log) else run.read(first, 1000, 1 << 30) or []
        assert [entry.data for entry in tail] == log[first:]
        assert first == 0 or run.read(first - 1, 1, 1) is None
        held += sum(len(data) + ENTRY_OVERHEAD_BYTES for data in log[first:])
    assert cache.size_bytes == held
    add(cache, CachedRun(9, 0), bytes(199_000))  # whatever was forgotten is no obstacle
    assert cache.size_bytes <= cache.size_bytes_max


def test_forgotten_topics_leave_nothing_behind() -> None:
    cache = EntryCache(1 << 20)
    for ledger_id in range(1000):
        run = CachedRun(ledger_id, 0)
        add(cache, run, b"x")
        cache.forget(run)
    assert cache.size_bytes == 0
    assert len(cache._fifo) <= 2
