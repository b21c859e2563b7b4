"""Turns received messages into bytes of the output: values, `--json` objects, `--format` texts."""

import base64
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from magnetar.client.message import Message

_DIRECTIVE: Final = re.compile(r"%(.?)|([^%]+)", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Renderer:
    """Renders messages in the form that the options ask for, and counts unreadable values."""

    def __init__(
        self, *, json: bool, output: str, form: str, key_delimiter: bytes | None,
        delimiter: bytes, terminal: bool,
    ) -> None:  # fmt: skip
        """`terminal`: control characters are escaped, so that no message moves the cursor."""
        self._render: Callable[[Message[Any]], bytes]
        self._value = _VALUES[output]
        self._terminal = terminal
        self._key_delimiter = key_delimiter
        self._delimiter = delimiter
        self.unreadable = 0
        self.reason = ""
        """Why the first unreadable value is so."""
        if json:
            self._render = self._json
        elif form:
            parts = parse_format(form)
            self._render = lambda message: self._shown(self._formatted(message, parts))
        else:
            self._render = self._plain

    def __call__(self, message: "Message[Any]") -> bytes:
        """Returns the bytes to write for a message."""
        return self._render(message)

    def _plain(self, message: "Message[Any]") -> bytes:
        line = self._value_of(message)
        if self._key_delimiter is not None:
            line = (message.key_bytes or b"") + self._key_delimiter + line
        return self._shown(line) + self._delimiter

    def _shown(self, data: bytes) -> bytes:
        if not self._terminal:
            return data
        text = data.decode("utf-8", "backslashreplace")
        return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text).encode()

    def _value_of(self, message: "Message[Any]") -> bytes:
        if self._value is not None:
            return self._value(message.data)
        value, failure = self.decoded(message)
        if failure:
            return message.data
        return value if isinstance(value, bytes) else text_of(value)

    def decoded(self, message: "Message[Any]") -> tuple[Any, str]:
        """Returns the value, or the reason for which it cannot be decoded."""
        from magnetar.client.errors import SchemaFailed

        if message.is_null:
            return None, ""
        try:
            return message.value, ""
        except SchemaFailed as error:
            self.unreadable += 1
            self.reason = self.reason or str(error)
            return None, str(error)

    def _json(self, message: "Message[Any]") -> bytes:
        import msgspec

        value, failure = self.decoded(message)
        document = fields_of(message)
        if failure:
            document |= {"valueBase64": _base64(message.data), "error": failure}
        elif isinstance(value, bytes):
            document |= _text_or_base64("value", value)
        else:
            document["value"] = value
        return msgspec.json.encode(document, enc_hook=_plain_value) + b"\n"

    def _formatted(self, message: "Message[Any]", parts: list[str | bytes]) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else self._directive(part, message) for part in parts
        )

    def _directive(self, letter: str, message: "Message[Any]") -> bytes:
        match letter:
            case "s":
                return self._value_of(message)
            case "S":
                return str(-1 if message.is_null else len(message.data)).encode()
            case "k":
                return message.key_bytes or b""
            case "K":
                return str(-1 if message.key_bytes is None else len(message.key_bytes)).encode()
            case "h":
                return ",".join(f"{k}={v}" for k, v in message.properties.items()).encode()
            case "t":
                return message.topic.encode()
            case "p":
                return str(message.id.partition).encode()
            case "T":
                return str(message.publish_time_ms).encode()
        return str(message.id).encode()  # %o


DIRECTIVES: Final = "sSkKhtpTo"


def parse_format(form: str) -> list[str | bytes]:
    """Splits a format into bytes and letters of directives; raises ArgumentTypeError."""
    from magnetar.cli.messages.texts import unescape

    parts: list[str | bytes] = []
    for match in _DIRECTIVE.finditer(form):
        letter, text = match[1], match[2]
        if text is not None:
            parts.append(unescape(text))
        elif letter == "%":
            parts.append(b"%")
        elif letter and letter in DIRECTIVES:
            parts.append(letter)
        else:
            raise ArgumentTypeError(
                f"%{letter} is not one of {', '.join(f'%{known}' for known in DIRECTIVES)} and %%"
            )
    return parts


def fields_of(message: "Message[Any]") -> dict[str, Any]:
    """Returns the fields of a message for `--json`, without its value; absent ones are left out."""
    document: dict[str, Any] = {"topic": message.topic, "id": str(message.id)}
    key = message.key_bytes
    if key is not None:
        document |= _text_or_base64("key", key)
    if message.ordering_key is not None:
        document["orderingKeyBase64"] = _base64(message.ordering_key)
    if message.properties:
        document["properties"] = dict(message.properties)
    if message.event_time_ms:
        document["eventTime"] = message.event_time_ms
    if message.deliver_at_ms:
        document["deliverAt"] = message.deliver_at_ms
    document |= {
        "publishTime": message.publish_time_ms,
        "producer": message.producer_name,
        "sequenceId": message.sequence_id,
    }
    if message.redelivery_count:
        document["redeliveries"] = message.redelivery_count
    if message.schema_version:
        document["schemaVersion"] = int.from_bytes(message.schema_version, "big")
    return document


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": _base64(data)}


def text_of(value: Any) -> bytes:
    """Returns a decoded value as text: texts as they are, all else as JSON."""
    import msgspec

    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value, enc_hook=_plain_value)


def _plain_value(value: Any) -> Any:
    """Returns what JSON has no form for as dictionaries and texts."""
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value, preserving_proto_field_name=True)
    return str(value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_VALUES: Final[dict[str, Callable[[bytes], bytes] | None]] = {
    "text": None,
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
}
OUTPUTS: Final = tuple(_VALUES)
