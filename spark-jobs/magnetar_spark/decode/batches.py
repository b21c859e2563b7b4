"""The messages of a batch, found without parsing each by itself.

A batch is a run of `size:u32 SingleMessageMetadata payload`. Mostly the messages that follow each
other are alike: the same fields in the same order, each as long as before. Then all of them are
one table of bytes: one comparison with what the first one's head tells (`heads`) shows how many,
and columns of the table are the columns of the result (`alike`). The next batch is mostly like the
last one, so its head is tried first.

Where there are fewer than ALIKE_MIN, ALIKE_TRIES times in one batch, the rest of the batch is
scanned message by message (`scan`). Heads with fields that neither knows are left to protobuf.
"""

from functools import partial
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from magnetar.wire._pb.PulsarApi_pb2 import SingleMessageMetadata
from magnetar.wire.framing import METADATA_SIZE_BYTES, MalformedEntry
from magnetar_spark.decode.builders import Table
from magnetar_spark.decode.heads import Head, walked
from magnetar_spark.decode.rows import Rows
from magnetar_spark.decode.scan import add_scanned

ALIKE_MIN: Final = 8
ALIKE_TRIES: Final = 2

_message_from = SingleMessageMetadata.FromString


def add_batch(rows: Rows, plain: bytes, count: int, at: int = 0) -> None:
    """Appends the messages of the batch that begins at `at` to the entry begun last; raises
    MalformedEntry. `plain` is kept until the rows are taken."""
    index = tries = 0
    while index < count and tries < ALIKE_TRIES:
        left = count - index
        head = rows.alike.head
        table = None if head is None else _alike(plain, at, head, left)
        if table is None or len(table) < min(ALIKE_MIN, left):
            head = walked(plain, at)
            if head is None:
                break
            table = _alike(plain, at, head, left)
        found = len(table)
        if found < min(ALIKE_MIN, left):
            tries += 1
        if head is None or not found:
            break
        rows.add_alike(head, table, index)
        at += found * head.stride
        index += found
    if index < count:
        add_scanned(rows, plain, at, index, count, partial(_add_one, rows, plain))


def _alike(plain: bytes, at: int, head: Head, count: int) -> Table:
    """Those of the next `count` messages, one to a line, that are as this head says."""
    stride = head.stride
    fit = min(count, (len(plain) - at) // stride)
    if fit <= 0:
        return _NONE
    table = np.frombuffer(plain, np.uint8, fit * stride, at).reshape(fit, stride)
    different = ((table[:, : head.size] & head.mask) != head.expected).any(axis=1)
    first = int(different.argmax())
    return table[:first] if different[first] else table


_NONE: Final[Table] = np.empty((0, 0), np.uint8)


def _add_one(rows: Rows, plain: bytes, at: int, index: int) -> int:
    """One message, by protobuf; where the next one begins."""
    start = at + METADATA_SIZE_BYTES
    end = start + int.from_bytes(plain[at:start])
    if end > len(plain) or start > len(plain):
        raise MalformedEntry("The batch ends within the metadata of a message")
    try:
        message = _message_from(plain[start:end])
    except DecodeError as error:
        raise MalformedEntry("The metadata of a message cannot be parsed") from error
    after = end + message.payload_size
    if not end <= after <= len(plain):
        raise MalformedEntry("The batch ends within a message")
    if not message.compacted_out:
        rows.add_message(message, None if message.null_value else plain[end:after], index)
    return after
