"""Splits a batch into messages without parsing each one.

A batch is a sequence of `size:u32 SingleMessageMetadata payload`. Consecutive messages usually have
the same layout: the same fields in the same order, with the same lengths. Then they form a table of
bytes: one comparison with the first message's head (`heads`) finds how many there are, and columns
of the table become columns of the result (`rows`). The next batch usually has the same layout as
the last one, so its head is tried first.

If ALIKE_TRIES runs in one batch have fewer than ALIKE_MIN messages, the rest of the batch is
scanned message by message (`scan`). Heads with fields that neither supports are parsed by protobuf.
"""

from functools import partial
from typing import Final

import numpy as np

from magnetar.wire.batch import message_at
from magnetar_spark.decode.builders import Table
from magnetar_spark.decode.heads import Head, walked
from magnetar_spark.decode.rows import Rows
from magnetar_spark.decode.scan import add_scanned

ALIKE_MIN: Final = 8
ALIKE_TRIES: Final = 2


def add_batch(rows: Rows, plain: bytes, count: int, at: int = 0) -> None:
    """Appends the messages of the batch at offset `at` to the current entry of `rows`.

    `plain` is kept until the rows are taken. Raises MalformedEntry.
    """
    index = tries = 0
    while index < count and tries < ALIKE_TRIES:
        left = count - index
        head = rows.alike_head
        table = None if head is None else _alike(plain, at, head, left)
        if table is None or len(table) < min(ALIKE_MIN, left):
            head = walked(plain, at)
            if head is None:
                break
            table = _alike(plain, at, head, left)
        matches = len(table)
        if matches < min(ALIKE_MIN, left):
            tries += 1
        if head is None or not matches:
            break
        rows.add_alike(head, table, index)
        at += matches * head.stride
        index += matches
    if index < count:
        add_scanned(rows, plain, at, index, count, partial(_add_one, rows, plain))


def _alike(plain: bytes, at: int, head: Head, count: int) -> Table:
    """The leading messages, of the next `count`, that match the head, one per line."""
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
    """Appends one message, parsed by protobuf, and returns the offset of the next."""
    message, start, after = message_at(plain, at)
    if not message.compacted_out:
        rows.add_message(message, None if message.null_value else plain[start:after], index)
    return after
