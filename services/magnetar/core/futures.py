"""Futures that a callback settles."""

import asyncio


def settle(future: asyncio.Future[None], error: Exception | None) -> None:
    """Completes `future`, or fails it with `error`. A future that is done, or cancelled, stays."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
