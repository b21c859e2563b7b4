"""What goes back: JSON documents, empty bodies, and errors as Pulsar's `{"reason": …}`.

All errors meet here. A `MagnetarError` brings its own status and text; a path or method that is not
served says so; anything else is a bug of ours: logged with its traceback, answered without.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from magnetar.admin.refusals import refusal
from magnetar.admin.routes import RouteTable
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger

log = get_logger("magnetar.admin")

JSON: Final = "application/json"
_encode = msgspec.json.Encoder().encode


def answer(document: object, status: int = 200) -> Response:
    """A JSON document."""
    return Response(_encode(document), status, media_type=JSON)


def bare(text: str) -> Response:
    """A plain text under the type of JSON, as Pulsar answers single strings (`ok`, a bundle)."""
    return Response(text.encode(), media_type=JSON)


def done() -> Response:
    """204: it happened, and there is nothing to say."""
    return Response(status_code=204)


def nothing() -> Response:
    """200 without a body: Pulsar's answer where a policy is not set."""
    return Response()


def optional(document: object) -> Response:
    """The document, or Pulsar's empty 200 where there is none."""
    return nothing() if document is None else answer(document)


def reason(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """An error."""
    return Response(_encode({"reason": text}), status, headers, media_type=JSON)


async def _on_magnetar_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, MagnetarError)  # noqa: S101 - registered for nothing else
    return reason(error.http_status, error.message)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    headers = dict(error.headers or {})
    if error.status_code in (404, 405):
        allowed = _methods(request) if error.status_code == 405 else ""
        if allowed:
            headers = {"allow": allowed}
        status, text = refusal(request.method, request.scope["path"], error.status_code, allowed)
        return reason(status, text, headers)
    return reason(error.status_code, str(error.detail), headers)


def _methods(request: Request) -> str:
    """What the path is offered for, by all of its routes together."""
    table = cast("RouteTable", request.app.router)
    return ", ".join(sorted(table.methods(request.scope)))


async def _on_timeout(_: Request, error: Exception) -> Response:
    return reason(503, f"The request timed out, please retry. {error}".strip())


async def _on_any_exception(request: Request, error: Exception) -> Response:
    log.exception("request failed", method=request.method, path=request.scope["path"])
    return reason(500, f"Internal error, see the broker's log: {type(error).__name__}")


HANDLERS: Final[Mapping[type[Exception], ExceptionHandler]] = {
    MagnetarError: _on_magnetar_error,
    HTTPException: _on_http_exception,
    TimeoutError: _on_timeout,
    Exception: _on_any_exception,
}
"""What the application does about errors."""


class Contained:
    """Around the whole application: an exception that was answered goes no further.

    Starlette raises it again after it was answered, so that servers log it; it was logged. Where
    only half an answer is out, it goes on: closing the connection is all that tells the client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        complete = False

        async def watch(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.body":
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception:
            if not complete:
                raise
