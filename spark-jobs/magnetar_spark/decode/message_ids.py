"""Serializes message ids (`MessageIdData`) as clients do, for a whole Arrow batch at once.

Ledger, entry and partition come first, then the index within the batch, then the batch's size. The
outer parts are serialized once per entry, the index once per number, and Arrow concatenates them.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.wire._pb.PulsarApi_pb2 import MessageIdData
from magnetar_spark.decode.builders import Numbers

INDEXES_PREPARED: Final = 4096
"""Indexes whose bytes are cached; a larger batch serializes its own."""


def message_ids(
    ledgers: Sequence[int],
    entries: Sequence[int],
    batch_sizes: Sequence[int],
    first_chunks: Sequence[MessageIdData | None],
    partition: int,
    counts: Numbers,
    index: Numbers,
) -> pa.Array:
    """One id per row, for entries of `counts` rows each, with these indexes (-1: no batch)."""
    heads, tails = [], []
    for ledger_id, entry_id, size, chunk in zip(
        ledgers, entries, batch_sizes, first_chunks, strict=True
    ):
        head = MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        if partition >= 0:
            head.partition = partition
        heads.append(head.SerializeToString())
        if size:
            tails.append(_without_id(MessageIdData(ledgerId=0, entryId=0, batch_size=size)))
        elif chunk is not None:
            tails.append(
                _without_id(MessageIdData(ledgerId=0, entryId=0, first_chunk_message_id=chunk))
            )
        else:
            tails.append(b"")
    rows = pa.array(np.repeat(np.arange(len(counts), dtype=np.int64), counts))
    highest = int(index.max(initial=-1))
    middles = _indexes(INDEXES_PREPARED) if highest < INDEXES_PREPARED else _made(highest + 1)
    return pc.binary_join_element_wise(
        pa.array(heads, pa.binary()).take(rows),
        middles.take(pa.array(index + 1)),
        pa.array(tails, pa.binary()).take(rows),
        b"",
    )


def _without_id(message: MessageIdData) -> bytes:
    """The serialized fields after ledger and entry id."""
    return message.SerializeToString()[len(_NO_ID) :]


_NO_ID: Final = MessageIdData(ledgerId=0, entryId=0).SerializeToString()


@lru_cache(maxsize=1)
def _indexes(count: int) -> pa.Array:
    return _made(count)


def _made(count: int) -> pa.Array:
    """The serialized field for no index, then those for 0 to `count` - 1."""
    fields = [
        _without_id(MessageIdData(ledgerId=0, entryId=0, batch_index=index))
        for index in range(count)
    ]
    return pa.array([b"", *fields], pa.binary())
