"""Topic patterns of clients, matched against names without domain and partition suffix."""

from collections.abc import Iterable
from typing import Final, Protocol

from magnetar.core.errors import NotAllowed
from magnetar.core.names import PARTITION_SUFFIX

PATTERN_CHARACTERS_MAX: Final = 50


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str, /) -> object | None:
        """Matches the whole text; None if it does not match."""


def compiled(pattern: str) -> Pattern:
    """Compiles a client's pattern; raises NotAllowed if it is too long or malformed.

    The syntax is RE2's, as in Pulsar: RE2 matches in linear time, so no pattern can stall the
    broker.
    """
    import re2

    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise NotAllowed(f"Pattern longer than maximum: {len(pattern)} > {PATTERN_CHARACTERS_MAX}")
    pattern = pattern.replace("\\Q", "").replace("\\E", "")
    _, separator, bare = pattern.partition("://")
    try:
        result: Pattern = re2.compile(bare if separator else pattern)
    except re2.error as error:
        raise NotAllowed(f"Invalid topics pattern '{pattern}': {error}") from error
    return result


def matches(pattern: Pattern, name: str) -> bool:
    """Whether the whole of a topic's name, without domain and partition suffix, matches."""
    return pattern.fullmatch(_bare(name)) is not None


def matching(names: Iterable[str], pattern: Pattern) -> list[str]:
    """Returns the names that match the pattern."""
    return [name for name in names if matches(pattern, name)]


def _bare(name: str) -> str:
    bare = name.partition("://")[2]
    head, separator, tail = bare.rpartition(PARTITION_SUFFIX)
    return head if separator and tail.isdigit() else bare
