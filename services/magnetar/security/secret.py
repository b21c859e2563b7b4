"""A secret that no log line, error text or traceback shows."""

from typing import Final

MASK: Final = "***"


class Secret:
    """Bytes that print as `***`; equality takes the same time for every other value."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes | str) -> None:
        self._value = value.encode() if isinstance(value, str) else value

    def reveal(self) -> bytes:
        """Returns the bytes. Pass them on, and keep no other reference."""
        return self._value

    def reveal_text(self) -> str:
        """Returns the bytes as UTF-8; raises UnicodeDecodeError, which names no byte of it."""
        try:
            return self._value.decode()
        except UnicodeDecodeError:
            raise UnicodeDecodeError("utf-8", b"", 0, 0, "a secret is not UTF-8") from None

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        from hmac import compare_digest  # imported here: an open process compares none

        return isinstance(other, Secret) and compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")
