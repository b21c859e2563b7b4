"""Shields requests that change state from the loss of their connection.

A handler writes to the store and then changes memory, or writes several records in turn. If it were
cancelled in between, these would contradict each other. The server cancels a handler when it stops
or when the client disconnects, for example a peer whose request timed out. The handler therefore
runs as a task of the broker, which is cancelled only when the broker stops.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import service_of
from magnetar.admin.http.routes import Description, Handler

READS: Final = "GET"


def shielded(route: Description) -> Handler:
    """Returns the route's handler as a task of the broker; a GET's handler is returned as it is."""
    placed = route.placed
    if route.method == READS:
        return placed

    async def to_the_end(request: Request) -> Response:
        name = f"{request.method} {request.scope['path']}"
        return await service_of(request).tasks.finish(_answer(placed, request), name)

    return to_the_end


async def _answer(handler: Handler, request: Request) -> Response:
    return await handler(request)
