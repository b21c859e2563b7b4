"""Runs a request that changes something to its end, whatever happens to its connection.

A handler writes to the store and then changes memory, or writes several records in a row. Cancelled
between the two, it would leave one without the other. The server may cancel a handler (it stops,
its client leaves), and so may the broker that sent the request here and waits no longer. So the
handler is a task of the broker, which is cancelled only when the broker stops.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import service_of
from magnetar.admin.routes import Description, Handler

READS: Final = "GET"


def in_one_step(route: Description) -> Handler:
    """The route's handler as a task of the broker, which a lost connection does not cut."""
    placed = route.placed
    if route.method == READS:
        return placed

    async def whole(request: Request) -> Response:
        what = f"{request.method} {request.scope['path']}"
        return await service_of(request).tasks.finish(_answer(placed, request), what)

    return whole


async def _answer(handler: Handler, request: Request) -> Response:
    return await handler(request)
