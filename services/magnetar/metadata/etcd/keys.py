"""Conversion of keys: the store's paths to etcd's keys below a root, and back."""

from magnetar.metadata.store import InvalidOperation


class Keys:
    """The keys below one root."""

    def __init__(self, root: str) -> None:
        self._root = root.encode()

    def full(self, key: str) -> bytes:
        """Returns etcd's key for a checked path."""
        return self._root + key.encode()

    def stripped(self, key: bytes) -> str:
        """Returns the path below the root. Keys of other applications need not be UTF-8."""
        return key[len(self._root) :].decode(errors="surrogateescape")

    def range_of(self, prefix: str) -> tuple[bytes, bytes]:
        """Returns the first key and the end (exclusive) of the keys that start with `prefix`.

        All keys start with `/`. A prefix that does not start with it gets a range without paths.
        """
        if not prefix:
            prefix = "/"
        elif not prefix.startswith("/"):
            prefix = "//" + prefix
        try:
            first = self._root + prefix.encode()
        except UnicodeEncodeError as error:
            raise InvalidOperation(f"{prefix!r} cannot be encoded: {error.reason}") from error
        return first, after(first)


def after(prefix: bytes) -> bytes:
    """Returns the first key after all keys with this prefix. UTF-8 has no byte 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
