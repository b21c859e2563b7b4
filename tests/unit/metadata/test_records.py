"""Decoding of metadata records: a damaged value is an error that names its key."""

import msgspec
import pytest

from magnetar.core.errors import MetadataError
from magnetar.metadata.records import RecordType, encode


class Shelf(msgspec.Struct):
    books: dict[str, str] = {}


SHELVES = RecordType(Shelf, "shelf")


def test_a_record_is_read_as_it_was_written() -> None:
    shelf = Shelf({"a": "b"})
    assert SHELVES.decode("/shelves/1", encode(shelf)) == shelf


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"\xff", b'{"books": 1}', b'{"books": {"a": "\xc3("}}'],
)
def test_a_damaged_record_is_an_error_that_names_its_key(value: bytes) -> None:
    with pytest.raises(MetadataError, match="/shelves/1 holds no shelf: "):
        SHELVES.decode("/shelves/1", value)


def test_nesting_without_end_is_an_error_that_names_its_key() -> None:
    with pytest.raises(MetadataError, match="/shelves/1 holds no shelf: "):
        SHELVES.decode("/shelves/1", b'{"other": ' + b"[" * 100_000)
