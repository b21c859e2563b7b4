"""An action on several topics or subscriptions: if one refuses it, the others still get it."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from magnetar.core.errors import MagnetarError

T = TypeVar("T")


async def for_each(items: Iterable[T], action: Callable[[T], Awaitable[object]]) -> None:
    """Runs the action on every item in turn, then raises the first refusal, if any.

    Pulsar also runs it on all of them: it starts all and waits for all.
    """
    refusal: MagnetarError | None = None
    for item in items:
        try:
            await action(item)
        except MagnetarError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
