"""The write cache against a plain dictionary, with entries in any order."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.cache.write_cache import WriteCacheHalf, segment_of
from magnetar.bookie.entry_log.flush import pieces
from magnetar.bookie.journal.codec_v1 import entries_crc, unpack_lengths
from magnetar.bookie.settings import BookieSettings

SMALL = BookieSettings(block_bytes=20, block_bytes_max=40)
Groups = list[tuple[list[int], bool]]


def normal(ids: list[int]) -> "range | tuple[int, ...]":
    span = range(ids[0], ids[0] + len(ids))
    return span if ids == list(span) else tuple(ids)


def data(entry_id: int, *, other: bool = False) -> bytes:
    return b"%d" % entry_id * (entry_id % 4) + (b"!" if other else b"")


GROUPS: st.SearchStrategy[Groups] = st.lists(
    st.tuples(
        st.one_of(
            st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(sorted),
            st.tuples(st.integers(0, 60), st.integers(1, 12)).map(
                lambda pair: list(range(pair[0], sum(pair)))
            ),
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def filled(groups: Groups) -> tuple[WriteCacheHalf, dict[int, bytes]]:
    half = WriteCacheHalf()
    model: dict[int, bytes] = {}
    for ids, other in groups:
        entries = [data(entry_id, other=other) for entry_id in ids]
        half.add(5, normal(ids), entries, segment_of(entries))
        model.update(zip(ids, entries, strict=True))
    return half, model


@given(GROUPS)
def test_slices_return_added_entries(groups: Groups) -> None:
    half, model = filled(groups)
    for first in range(75):
        result = half.slice(5, first, 80, 1000)
        following = [entry_id for entry_id in sorted(model) if entry_id >= first]
        if not following:
            assert result is None
            continue
        assert result is not None
        ids, entries = result
        assert ids[0] == following[0]
        assert list(ids) == following[: len(ids)]
        assert entries == [model[entry_id] for entry_id in ids]
        assert half.slice(5, first, following[0], 1000) == (ids[:1], entries[:1])
        assert half.slice(5, first, 80, 1) == (ids[:1], entries[:1])
    assert half.slice(6, 0, 80, 1) is None


@given(GROUPS, st.booleans())
def test_pieces_contain_all_entries_with_valid_crcs(groups: Groups, merge: bool) -> None:
    half, model = filled(groups)
    result: dict[int, bytes] = {}
    last = -1
    for segments, ranges, entries in pieces(half.ledgers[5], SMALL, merge=merge):
        ids = [base + n for base, count in ranges for n in range(count)]
        assert ids[0] > last
        last = ids[-1]
        assert merge or len(ranges) == 1
        assert sum(segment.count for segment in segments) == len(entries) == len(ids)
        at = 0
        for segment in segments:
            part = entries[at : at + segment.count]
            assert segment.crc == entries_crc(part)
            assert list(unpack_lengths(segment.lengths)) == list(map(len, part))
            assert segment.body_bytes == sum(map(len, part))
            at += segment.count
        result.update(zip(ids, entries, strict=True))
    assert result == model


def test_a_large_group_is_cut_into_blocks() -> None:
    half = WriteCacheHalf()
    entries = [bytes([n]) * 15 for n in range(10)]
    half.add(1, range(10), entries, segment_of(entries))
    sizes = [sum(map(len, result)) for _, _, result in pieces(half.ledgers[1], SMALL, merge=True)]
    assert sum(sizes) == 150
    assert max(sizes) <= 45


def test_charge_grows_with_adds_and_shrinks_with_a_drop() -> None:
    half = WriteCacheHalf()
    half.add(1, range(3), [b"x" * 100] * 3, segment_of([b"x" * 100] * 3))
    piece = half.charge
    assert piece > 300
    half.add(2, range(3), [b"x" * 100] * 3, segment_of([b"x" * 100] * 3))
    assert half.charge == 2 * piece
    half.drop(1)
    half.drop(1)
    assert (half.charge, half.count) == (piece, 3)
    assert half.slice(1, 0, 10, 10) is None
