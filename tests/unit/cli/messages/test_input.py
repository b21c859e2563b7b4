"""Messages of lines, of JSON objects, and of delimited bytes in any chunks."""

import argparse
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.messages.errors import InputFailed
from magnetar.cli.messages.input import Item, decoder, json_item, lines


def parsed(**options: object) -> argparse.Namespace:
    given = {"json": False, "input": "raw", "key_delimiter": None, "null": False}
    return argparse.Namespace(**{**given, **options})


@given(
    st.lists(st.binary(max_size=12).filter(lambda part: b"ab" not in part), max_size=8),
    st.booleans(),
)
async def test_lines_are_what_delimiters_separate(parts: list[bytes], ended: bool) -> None:
    parts = [part for part in parts if not part.endswith(b"a")]
    data = b"ab".join(parts) + (b"ab" if ended and parts else b"")
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
        os.close(writing)
        found = [line async for line in lines(reading, b"ab")]
    finally:
        os.close(reading)
    expected = list(parts)
    if not ended and expected and not expected[-1]:
        expected.pop()  # nothing follows the last delimiter
    assert found == expected


async def test_a_delimiter_may_be_split_over_chunks() -> None:
    reading, writing = os.pipe()
    stream = lines(reading, b"\r\n")
    try:
        os.write(writing, b"one\r\ntwo\r")
        assert await anext(stream) == b"one"
        os.write(writing, b"\nthree")
        assert await anext(stream) == b"two"
        os.close(writing)
        assert [line async for line in stream] == [b"three"]
    finally:
        os.close(reading)


def test_keys_of_lines() -> None:
    decode = decoder(parsed(key_delimiter=b":", null=True))
    assert decode(b"k:v:w", 1) == Item(b"v:w", key="k", line=1)
    assert decode(b"\xff:v", 2) == Item(b"v", key_bytes=b"\xff", line=2)
    assert decode(b"k:", 3) == Item(None, key="k", line=3)
    with pytest.raises(InputFailed, match="line 4: no b':' between key and value"):
        decode(b"v", 4)


def test_encoded_values() -> None:
    assert decoder(parsed(input="hex"))(b"68 69", 1).value == b"hi"
    assert decoder(parsed(input="base64"))(b"aGk=", 1).value == b"hi"
    for form in ("hex", "base64"):
        with pytest.raises(InputFailed, match="line 7"):
            decoder(parsed(input=form))(b"?!", 7)


def test_json_objects() -> None:
    line = (
        b'{"topic":"t","id":"1:2:-1","value":"v","key":"k","properties":{"a":"b"},"eventTime":5,'
        b'"deliverAt":6,"orderingKeyBase64":"aGk=","publishTime":1,"producer":"p","sequenceId":0}'
    )
    assert json_item(line, 3) == Item(b"v", "k", None, b"hi", {"a": "b"}, 5, 6, 3)
    assert json_item(b'{"value":{"n":1}}', 1).value == b'{"n":1}'
    assert json_item(b'{"value":null,"keyBase64":"/w=="}', 1) == Item(None, None, b"\xff", line=1)
    assert json_item(b'{"valueBase64":"/w=="}', 1).value == b"\xff"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{}", "line 9: no value"),
        (b'{"value":1,"valueBase64":""}', "not both"),
        (b'{"value":1,"key":"a","keyBase64":""}', "not both"),
        (b'{"value":1,"color":2}', "color"),
        (b'{"value":1,"eventTime":"x"}', "eventTime"),
        (b'{"valueBase64":"?"}', "line 9"),
        (b"no json", "line 9"),
    ],
)
def test_json_that_is_no_message_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(InputFailed, match=reason):
        json_item(line, 9)
