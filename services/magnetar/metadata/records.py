"""The codec of metadata records: JSON of a msgspec struct or document, errors that name the key."""

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from magnetar.core.errors import MetadataError

R = TypeVar("R", bound=msgspec.Struct)

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises for a damaged value: bad UTF-8 is not among its own errors."""


encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode
"""Returns the value of a record (a struct or a document) of any kind."""


_document: Final = msgspec.json.Decoder(dict[str, Any])


def decode_document(key: str, value: bytes) -> dict[str, Any]:
    """Returns the JSON object in `value`. Raises MetadataError naming the key if it holds none."""
    try:
        return _document.decode(value)
    except UNDECODABLE as error:
        raise MetadataError(f"{key} holds no document: {error}") from error


class RecordType(Generic[R]):
    """Decodes the records of one kind. `name` is what errors call it ("ledger")."""

    def __init__(self, struct: type[R], name: str) -> None:
        self._decoder = msgspec.json.Decoder(struct)
        self._name = name

    def decode(self, key: str, value: bytes) -> R:
        """Returns the record in `value`. Raises MetadataError naming the key if it holds none."""
        try:
            return self._decoder.decode(value)
        except UNDECODABLE as error:
            raise MetadataError(f"{key} holds no {self._name}: {error}") from error
