"""Texts of arguments: delimiters, times, positions and pairs."""

from argparse import ArgumentTypeError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.messages.texts import Position, delimiter, pair, position, time_ms, unescape

NOW_MARGIN_MS = 60_000


@given(st.binary(min_size=1))
def test_every_delimiter_can_be_written(data: bytes) -> None:
    assert delimiter("".join(f"\\x{byte:02x}" for byte in data)) == data


@given(st.text(st.characters(exclude_characters="\\", exclude_categories=["Cs"])))
def test_text_without_escapes_is_itself(text: str) -> None:
    assert unescape(text) == text.encode()


def test_escapes() -> None:
    assert unescape(r"\n\t\r\0\\\x7Cä") == b"\n\t\r\0\\|\xc3\xa4"


@pytest.mark.parametrize("text", [r"\q", "\\", r"\x1"])
def test_unknown_escapes_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not one of"):
        unescape(text)


def test_positions() -> None:
    assert position("earliest") == Position("earliest")
    assert position("7:3") == Position("id", (7, 3, -1, -1))
    assert position("7:3:-1") == Position("id", (7, 3, -1, -1))
    assert position("7:3:2:5") == Position("id", (7, 3, 2, 5))
    moment = position("2026-01-02T03:04:05.678Z")
    assert moment == Position("time", time_ms=1_767_323_045_678)
    assert position("1767323045678") == moment
    assert time_ms("now") - position("1h").time_ms == pytest.approx(3_600_000, abs=NOW_MARGIN_MS)


@pytest.mark.parametrize("text", ["", "first", "1:", "1:2:3:4:5", "1767323045", "yesterday"])
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a position: use earliest, latest"):
        position(text)


def test_seconds_since_1970_are_not_taken_for_milliseconds() -> None:
    with pytest.raises(ArgumentTypeError, match="too small for milliseconds"):
        time_ms("1767323045")


def test_pairs() -> None:
    assert pair("a=b=c") == ("a", "b=c")
    assert pair("a=") == ("a", "")
    for text in ("a", "=b"):
        with pytest.raises(ArgumentTypeError, match="NAME=VALUE"):
            pair(text)
