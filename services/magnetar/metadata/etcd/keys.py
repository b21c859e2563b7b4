"""Keys as etcd has them: the root before each, ranges of prefixes, and back."""

from magnetar.metadata.store import InvalidOperation


class Keys:
    """The keys below one root."""

    def __init__(self, root: str) -> None:
        self._root = root.encode()

    def full(self, key: str) -> bytes:
        """Of a key that was checked."""
        return self._root + key.encode()

    def stripped(self, key: bytes) -> str:
        """The key below the root. Others' keys, which need not be text, harm nobody."""
        return key[len(self._root) :].decode(errors="surrogateescape")

    def range_of(self, prefix: str) -> tuple[bytes, bytes]:
        """First key and end (exclusive) of the keys that start with `prefix`, below the root only.

        All keys start with `/`; a prefix that does not can match none, and gets a range that no
        path can lie in.
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
    """The first key behind all those that start with `prefix`. UTF-8 has no byte 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
