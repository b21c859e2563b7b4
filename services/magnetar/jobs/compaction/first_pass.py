"""The first pass: finds the place of the latest message of each key.

A task keeps the latest place of each key in a dictionary and emits one row per key, so a hot key is
one row per task, however often it was written. The dictionary is emitted and cleared when it has
KEYS_MAX keys or KEY_BYTES_MAX bytes of keys, so a task's memory does not grow with the number of
keys. Spark takes the greatest place of each key, and spills to disk if necessary.

An entry that is kept regardless of its keys (`Kind.OPAQUE`) gets a key that no message can have.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import PersistenceError
from magnetar.jobs.compaction.entries import Kind, Parsed, keyed_messages, parse
from magnetar.jobs.compaction.part_entries import PlacedEntry
from magnetar.jobs.compaction.plan import place_of
from magnetar.wire.framing import MalformedEntry

KEYS_MAX: Final = 200_000
KEY_BYTES_MAX: Final = 32 << 20

OF_KEY: Final = b"k"
OF_ENTRY: Final = b"e"


@dataclass(slots=True)
class Counts:
    """The counts of one task. `chunks`: those that are not the last of their message."""

    entries: int = 0
    bytes: int = 0
    messages: int = 0
    chunks: int = 0
    report: Callable[["Counts"], None] = field(default=lambda _: None)


def latest_places(
    part: int, entries: Iterable[PlacedEntry], counts: Counts
) -> Iterator[dict[bytes, int]]:
    """Dictionaries of keys and places, the later with later places. Do not keep references."""
    latest: dict[bytes, int] = {}
    key_bytes = 0
    for number, ledger_id, entry_id, data in entries:
        counts.entries += 1
        counts.bytes += len(data)
        try:
            parsed = parse(data)
        except MalformedEntry as error:
            raise PersistenceError(
                f"entry {ledger_id}:{entry_id} cannot be decoded: {error}"
            ) from error
        counts.messages += _count(parsed)
        if parsed.kind is Kind.NOTHING:
            continue
        if parsed.kind is Kind.CHUNK:
            counts.chunks += 1
            continue
        keyed = keyed_messages(parsed)
        if keyed is None:
            latest[OF_ENTRY + part.to_bytes(4) + number.to_bytes(4)] = place_of(
                part, number, 0, alive=True
            )
            continue
        base = place_of(part, number, 0, alive=False)
        for index, key, alive in keyed:
            latest[OF_KEY + key] = base | index << 1 | alive
            key_bytes += len(key)
        full = len(latest) >= KEYS_MAX
        if key_bytes >= KEY_BYTES_MAX:
            key_bytes = sum(map(len, latest))  # hot keys were counted repeatedly
            full = full or key_bytes >= KEY_BYTES_MAX // 2
        if full:
            yield latest
            latest, key_bytes = {}, 0
    if latest:
        yield latest
    counts.report(counts)


def _count(parsed: Parsed) -> int:
    """The number of messages; in a compacted batch, of those that are left."""
    if parsed.kind is Kind.CHUNK:
        return 0
    metadata = parsed.metadata
    return len(metadata.compacted_batch_indexes) or metadata.num_messages_in_batch
