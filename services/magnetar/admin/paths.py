"""Paths as clients wrote them: routed while still percent-encoded, decoded segment by segment.

ASGI servers hand over a decoded path, in which the `/` that a client encoded inside a topic's or a
subscription's name can no longer be told from a separator. `RawPaths` gives the router the raw
path instead, and the converters below decode what a route's parameter matched, so that
`/admin/v2/persistent/t/n/a%2Fb%2Fc/subscription/s/skip/1` has one topic and one subscription.
`+` is a space: Pulsar's clients encode names as forms do. A slash at the end changes nothing, and
HEAD is GET without the body, which the HTTP server leaves out.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_plus

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

INT_DIGITS_MAX: Final = 19
"""Digits of a number in a path: Java's long has no more."""


class _Name(Convertor[str]):
    """One segment, decoded."""

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
    """A number that fits Java's long, with a sign."""

    regex = f"-?[0-9]{{1,{INT_DIGITS_MAX}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class _Bundle(Convertor[str]):
    """`0x00000000_0x40000000`."""

    regex = "0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}"

    def convert(self, value: str) -> str:
        return value.lower()

    def to_string(self, value: str) -> str:
        return value


class _Choice(Convertor[str]):
    """One of a set of words: subclasses have them in `regex`."""

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def register_choice(kind: str, words: Iterable[str]) -> None:
    """Makes `{x:kind}` match these words only."""
    made = type(f"_{kind}", (_Choice,), {"regex": "|".join(sorted(words))})
    register_url_convertor(kind, made())


def register_converters() -> None:
    """Makes `{x:name}`, `{x:domain}`, `{x:number}` and `{x:bundle}` known to routes."""
    register_url_convertor("name", _Name())
    register_url_convertor("domain", _Domain())
    register_url_convertor("number", _Number())
    register_url_convertor("bundle", _Bundle())


class RawPaths:
    """The outermost application: see the module's text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
            path = raw.decode("ascii", "replace").rstrip("/") or "/"
            # A copy: the server goes by its own scope where it leaves out the body of a HEAD.
            scope = {**scope, "path": path}
            if scope["method"] == "HEAD":
                scope["method"] = "GET"
        await self.app(scope, receive, send)
