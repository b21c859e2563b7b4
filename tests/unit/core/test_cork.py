"""The cork: every flush is called once, at its release, also if another one fails."""

import pytest

from magnetar.core.cork import Cork


def test_flushes_are_called_once_in_order_when_the_last_holder_releases_it() -> None:
    cork, calls = Cork(), list[str]()
    assert not cork.held
    with cork:
        cork.on_release(lambda: calls.append("a"))
        with cork:
            cork.on_release(lambda: calls.append("b"))
        assert cork.held
        assert not calls
    assert (cork.held, calls) == (False, ["a", "b"])
    with cork:
        pass
    assert calls == ["a", "b"]


def test_an_error_of_the_holder_or_of_a_flush_keeps_no_flush_from_its_call() -> None:
    cork, calls = Cork(), list[str]()

    def fails() -> None:
        raise OSError("gone")

    def hold() -> None:
        with cork:
            cork.on_release(fails)
            cork.on_release(lambda: calls.append("a"))
            raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        hold()
    assert (cork.held, calls) == (False, ["a"])
