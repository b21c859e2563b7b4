"""Paths are matched while percent-encoded and decoded segment by segment.

ASGI servers pass a decoded path, in which an encoded `/` inside the name of a topic or subscription
looks like a separator. `RawPaths` gives the router the raw path instead, and the converters below
decode the segment that a route's parameter matched, so that
`/admin/v2/persistent/t/n/a%2Fb%2Fc/subscription/s/skip/1` has one topic and one subscription.
`+` is a space: Pulsar's clients encode names as forms do. A trailing slash is ignored. HEAD is
served as GET; the HTTP server omits the body.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_plus

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

TOPIC_PATH: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"
"""The part of a route's path that names a topic, for `context.topic_of`."""

INT_DIGITS_MAX: Final = 19
"""The most digits of a number in a path, as in Java's long."""


class _Name(Convertor[str]):
    """Any one segment, decoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote_plus(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


class _Domain(Convertor[str]):
    """`persistent` or `non-persistent`."""

    regex = "persistent|non-persistent"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Number(Convertor[int]):
    """A whole number of at most INT_DIGITS_MAX digits, perhaps with a minus sign."""

    regex = f"-?[0-9]{{1,{INT_DIGITS_MAX}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class _Bundle(Convertor[str]):
    """A bundle's hash range, `0x00000000_0x40000000`."""

    regex = "0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}"

    def convert(self, value: str) -> str:
        return value.lower()

    def to_string(self, value: str) -> str:
        return value


class _Choice(Convertor[str]):
    """One of a set of words; subclasses list them in `regex`."""

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def register_choice(kind: str, words: Iterable[str]) -> None:
    """Registers a converter, so that `{x:kind}` matches only these words."""
    converter = type(f"_{kind}", (_Choice,), {"regex": "|".join(sorted(words))})
    register_url_convertor(kind, converter())


def register_converters() -> None:
    """Registers the converters for `{x:name}`, `{x:domain}`, `{x:number}` and `{x:bundle}`."""
    register_url_convertor("name", _Name())
    register_url_convertor("domain", _Domain())
    register_url_convertor("number", _Number())
    register_url_convertor("bundle", _Bundle())


class RawPaths:
    """ASGI middleware that passes the router the raw path, and HEAD as GET."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
            path = raw.decode("ascii", "replace").rstrip("/") or "/"
            # A copy: the server needs HEAD in its own scope, to omit the body.
            scope = {**scope, "path": path}
            if scope["method"] == "HEAD":
                scope["method"] = "GET"
        await self.app(scope, receive, send)
