"""How a producer or consumer attaches again, and which errors end it.

Creation gives up on every error that is not retryable. A producer or consumer that was attached
before keeps trying on more: a name may still be held by its previous connection, a quota may be
freed, credentials may be renewed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.client.context import Context
from magnetar.client.errors import (
    AlreadyClosed,
    ClientError,
    EncryptionRequired,
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowed,
    ProducerFenced,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
    UnsupportedVersion,
)
from magnetar.client.network.retry import FIRST_BACKOFF_S
from magnetar.core.backoff import Backoff
from magnetar.core.log import get_logger

log = get_logger("magnetar.client.attachment")

_ENDS: Final = (
    AlreadyClosed,
    EncryptionRequired,
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowed,
    ProducerFenced,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
    UnsupportedVersion,
)


def ends_attachment(error: ClientError) -> bool:
    """Whether an attached producer or consumer gives up after this error."""
    return isinstance(error, _ENDS)


async def attach_again(
    attach: Callable[[str], Awaitable[None]],
    refused: Callable[[ClientError], bool],
    context: Context,
    kind: str,
    redirect: str,
    *,
    at_once: bool,
) -> None:
    """Calls `attach` until it succeeds, or `refused` returns that its error ends the attempts.

    `kind` names the object in the log. The first attempt goes to the broker of the URL `redirect`,
    if there is one; others look the topic up.
    """
    backoff = Backoff(FIRST_BACKOFF_S, context.options.backoff_max_s, context.random)
    if not at_once:
        await asyncio.sleep(backoff.failed_s())
    while True:
        try:
            await attach(redirect)
            return
        except ClientError as error:
            if refused(error):
                return
            log.info("could not attach", kind=kind, topic=error.topic, error=str(error))
        except Exception as error:  # nothing else would attach it again: its calls would hang
            log.error("could not attach", kind=kind, error=repr(error), exc_info=error)
        redirect = ""
        await asyncio.sleep(backoff.failed_s())
