"""Responses: JSON documents, empty bodies, and errors as Pulsar's `{"reason": …}`.

All errors are handled here. A `MagnetarError` has its own status and text. A path or method that no
route serves gets `refusals.refusal`. Any other exception is a bug of ours: the traceback is logged,
the answer has only the exception's type.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from magnetar.admin.http.routes import RouteTable
from magnetar.admin.refusals import refusal
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger

log = get_logger("magnetar.admin")

JSON: Final = "application/json"
_encode = msgspec.json.Encoder().encode


def answer(document: object, status: int = 200) -> Response:
    """Returns a JSON document."""
    return Response(_encode(document), status, media_type=JSON)


def bare(text: str) -> Response:
    """Returns unquoted text with the type of JSON, as Pulsar returns a string (`ok`, a bundle)."""
    return Response(text.encode(), media_type=JSON)


def done() -> Response:
    """Returns 204, for a change that succeeded."""
    return Response(status_code=204)


def empty() -> Response:
    """Returns 200 without a body, Pulsar's answer for a policy that is not set."""
    return Response()


def optional(document: object) -> Response:
    """Returns the document, or Pulsar's empty 200 for None."""
    return empty() if document is None else answer(document)


def reason(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """Returns an error with its reason."""
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
    """Returns the methods that the path's routes offer, as a list with commas."""
    table = cast("RouteTable", request.app.router)
    return ", ".join(sorted(table.methods(request.scope)))


async def _on_timeout(_: Request, error: Exception) -> Response:
    return reason(503, f"The request timed out, please retry. {error}".strip())


async def _on_disconnect(_: Request, error: Exception) -> Response:  # noqa: ARG001
    # No client receives the answer. A line for each would let a client fill the log.
    return reason(400, "The connection was lost before the request was complete")


async def _on_any_exception(request: Request, error: Exception) -> Response:
    log.exception("request failed", method=request.method, path=request.scope["path"])
    return reason(500, f"Internal error, see the broker's log: {type(error).__name__}")


HANDLERS: Final[Mapping[type[Exception], ExceptionHandler]] = {
    MagnetarError: _on_magnetar_error,
    HTTPException: _on_http_exception,
    ClientDisconnect: _on_disconnect,
    TimeoutError: _on_timeout,
    Exception: _on_any_exception,
}
"""The application's handler for each type of exception."""


class Contained:
    """Wraps the application and drops the exceptions that it has answered.

    Starlette raises an exception again after answering it, so that the server logs it; ours is
    logged already. If only part of an answer was sent, the exception passes: the server then
    closes the connection, which is the only way to report the error to the client.
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
