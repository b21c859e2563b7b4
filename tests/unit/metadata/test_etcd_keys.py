"""Keys below a root: no range includes keys of others."""

import pytest

from magnetar.metadata.etcd.keys import Keys, after
from magnetar.metadata.store import InvalidOperation

OTHERS = [b"/r", b"/r0/a", b"/r1/a", b"/ra", b"/ra/a", b"/r-/a", b"/q/a", b"/s/a", b"a", b"r/a"]
OWN = [b"/r/a", b"/r/a/b", b"/r/ab", "/r/é".encode(), "/r/\U0010ffff".encode()]


@pytest.mark.parametrize("prefix", ["", "/", "/a", "/a/", "a", "1", "0/", "a/", "-", "é", "/é"])
def test_a_range_holds_what_starts_with_the_prefix_and_no_others(prefix: str) -> None:
    keys = Keys("/r")
    first, end = keys.range_of(prefix)
    found = [key for key in OTHERS + OWN if first <= key < end]
    assert found == [key for key in OWN if keys.stripped(key).startswith(prefix)]


def test_keys_get_their_root_and_lose_it() -> None:
    for root in ("", "/r", "/r/é"):
        keys = Keys(root)
        assert keys.stripped(keys.full("/a/é")) == "/a/é"
    assert Keys("/r").stripped(b"/r/\xff") == "/\udcff"


def test_the_end_of_a_range_is_behind_all_that_starts_so() -> None:
    assert after(b"/a/") == b"/a0"
    assert after(b"/a") == b"/b"


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidOperation):
        Keys("/r").range_of("/\ud800")
