"""Request bodies: read within a bound, parsed into typed documents, refused in plain words.

Parsing is lenient where Jackson is: unknown fields are ignored, `"4"` passes for 4, and a field
that is null counts as left out (Go's client writes null for an empty map). What cannot be parsed is
400 with the field named (`$.ledgerId`).
"""

from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

T = TypeVar("T")

BODY_BYTES_MAX: Final = 4 << 20
"""Far above any policy document; schemas may take a megabyte."""


async def read(request: Request, *, plain: bool = False) -> bytes:
    """The body; 413 where it is too large, 415 where it says that it is not JSON.

    `plain`: it may also say that it is plain text, as the body of a bare number may for Pulsar.
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
    known = content_type.endswith("json") or (plain and content_type == "text/plain")
    if body and content_type and not known:
        raise HTTPException(415, f"The body must be application/json, not {content_type}")
    return body


async def parse(request: Request, kind: type[T], *, plain: bool = False) -> T | None:
    """The body as `kind`, or None where there is none (empty, or JSON's null)."""
    body = await read(request, plain=plain)
    if not body or body.strip() == b"null":
        return None
    try:
        given = msgspec.json.decode(body)
        if isinstance(given, dict):
            given = {key: value for key, value in given.items() if value is not None}
        return msgspec.convert(given, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"The body does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"The body is not valid JSON: {error}") from error


def flag(request: Request, name: str, *, default: bool = False) -> bool:
    """A query parameter that is `true` or `false`."""
    text = request.query_params.get(name)
    return default if text is None else text.strip().lower() == "true"


def number(request: Request, name: str, default: int) -> int:
    """A query parameter that is a number."""
    text = request.query_params.get(name)
    if text is None or not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise HTTPException(400, f"Query parameter {name} must be a number, not {text!r}") from None
