"""Runs of consecutive entry ids in a bitmap, found without walking through the ids. Pure."""

from collections.abc import Iterator

from pyroaring import BitMap


def run_end(bitmap: BitMap, entry_id: int) -> int:
    """Returns the last id of the run of set ids after `entry_id`, or `entry_id` itself."""
    if entry_id + 1 not in bitmap:
        return entry_id
    if entry_id + 2 not in bitmap:
        return entry_id + 1
    first = entry_id + 1
    good, step = first, 1
    while bitmap.contains_range(first, good + step + 1):
        good += step
        step *= 2
    while step > 1:
        step //= 2
        if bitmap.contains_range(first, good + step + 1):
            good += step
    return good


def run_start(bitmap: BitMap, entry_id: int) -> int:
    """Returns the first id of the run of set ids that ends with `entry_id`, which is set."""
    first, step = entry_id, 1
    while first - step >= 0 and bitmap.contains_range(first - step, entry_id + 1):
        first -= step
        step *= 2
    while step > 1:
        step //= 2
        if first - step >= 0 and bitmap.contains_range(first - step, entry_id + 1):
            first -= step
    return first


def runs(bitmap: BitMap) -> Iterator[tuple[int, int]]:
    """Yields the runs of consecutive ids, each as (first, last)."""
    start = bitmap.next_set_bit(0) if bitmap else None
    while start is not None:
        last = run_end(bitmap, start)
        yield start, last
        start = bitmap.next_set_bit(last + 1) if last < bitmap.max() else None


def run_count(bitmap: BitMap) -> int:
    """Returns the number of runs of consecutive ids."""
    return len(bitmap) - bitmap.intersection_cardinality(bitmap.shift(1))
