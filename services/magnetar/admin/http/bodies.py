"""Request bodies and query parameters: read within a bound and parsed into typed values.

The parser is as lenient as Jackson: it accepts `"4"` for 4, and treats a null field as missing
(Go's client writes null for an empty map). A body that does not parse, or has a field that is
unknown, is refused with 400 and the name of the field (`$.ledgerId`).
"""

from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from magnetar.admin.http import unknown_fields
from magnetar.documents.resources import InvalidMessageId, MessageId

T = TypeVar("T")

BODY_BYTES_MAX: Final = 4 << 20
"""Far above any policy document; a schema may have a megabyte."""

_FLAGS: Final = {"true": True, "false": False}


async def read(request: Request, *, plain: bool = False) -> bytes:
    """Returns the body; raises 413 if it is too large, 415 if its type is not JSON.

    `plain` also allows the type of plain text, as Pulsar does for a body that is a bare number.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise HTTPException(413, f"The body is larger than {BODY_BYTES_MAX} bytes")
        chunks.append(chunk)
    body = b"".join(chunks)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    allowed = content_type.endswith("json") or (plain and content_type == "text/plain")
    if body and content_type and not allowed:
        raise HTTPException(415, f"The body must be application/json, not {content_type}")
    return body


async def parse(request: Request, kind: type[T], *, plain: bool = False) -> T | None:
    """Returns the body as `kind`; None if it is empty or JSON's null. Raises 400, 413 or 415."""
    body = await read(request, plain=plain)
    if not body or body.strip() == b"null":
        return None
    try:
        given = msgspec.json.decode(body)
        if isinstance(given, dict):
            given = {key: value for key, value in given.items() if value is not None}
        elif isinstance(given, str) and isinstance(kind, type) and issubclass(kind, MessageId):
            return kind.of_text(given)  # a union is no class
        value = msgspec.convert(given, type=kind, strict=False)
    except (msgspec.ValidationError, InvalidMessageId) as error:
        raise HTTPException(400, f"The body does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"The body is not valid JSON: {error}") from error
    if not isinstance(value, MessageId):  # clients send more fields of theirs with an id
        unknown_fields.check(given, value)
    return value


def flag(request: Request, name: str, *, default: bool = False) -> bool:
    """Returns a query parameter that is `true` or `false`, or the default; raises 400.

    Pulsar takes every other text for false, so that `?force=1` or `?force` does not force.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if (value := _FLAGS.get(text.strip().lower())) is None:
        raise HTTPException(400, f"Query parameter {name} must be true or false, not {text!r}")
    return value


def number(request: Request, name: str, default: int) -> int:
    """Returns a query parameter that is a number, or the default."""
    value = optional_number(request, name)
    return default if value is None else value


def optional_number(request: Request, name: str) -> int | None:
    """Returns a query parameter that is a number, or None if it is missing or empty."""
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise HTTPException(400, f"Query parameter {name} must be a number, not {text!r}") from None
