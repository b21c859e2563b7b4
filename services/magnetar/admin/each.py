"""One action on several topics or subscriptions: a refusal of one does not spare the others."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from magnetar.core.errors import MagnetarError

T = TypeVar("T")


async def for_each(things: Iterable[T], do: Callable[[T], Awaitable[object]]) -> None:
    """Does it to all of them, one after the other; then raises the first refusal, if any.

    As Pulsar does, which starts all and waits for all.
    """
    refusal: MagnetarError | None = None
    for thing in things:
        try:
            await do(thing)
        except MagnetarError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
