"""Whether another broker is there: a connection to its binary listener, opened and closed again.

Where a connection is refused twice in a row, nobody listens there any more, and as a broker
withdraws its registration before it stops listening, one that is still registered has died.
Anything else that goes wrong says nothing: the peer may be slow, paused, or cut off.
"""

import asyncio
import errno
from dataclasses import dataclass
from enum import Enum
from typing import Final

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.tasks import TaskSet

PROBE_TIMEOUT_S: Final = 0.5
PROBE_FRESH_S: Final = 0.25
"""How long an answer is good for."""
REFUSED_AGAIN_S: Final = 0.05
"""Between the two refusals that make a broker count as dead."""
PROBES_KEPT_MAX: Final = 1_024


class Presence(Enum):
    """What is known of a broker."""

    ALIVE = "alive"
    REFUSED = "refused"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class _Answer:
    presence: Presence
    until: float


class Prober:
    """See the module's text. One probe at a time of one broker, shared by all who ask."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._answers: dict[tuple[str, int], _Answer] = {}
        self._asking: dict[tuple[str, int], asyncio.Future[Presence]] = {}

    async def look(self, broker: BrokerRecord) -> Presence:
        """Asks, unless it was asked a moment ago."""
        key = (broker.broker_id, broker.start)
        loop = asyncio.get_running_loop()
        known = self._answers.get(key)
        if known is not None and loop.time() < known.until:
            return known.presence
        asking = self._asking.get(key)
        if asking is None:
            asking = self._tasks.start(self._ask(broker), f"probe {broker.broker_id}")
            if asking is None:
                return Presence.UNSURE
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(asking)

    def _asked(self, key: tuple[str, int], done: "asyncio.Future[Presence]") -> None:
        del self._asking[key]
        if done.cancelled() or done.exception() is not None:
            return
        if len(self._answers) >= PROBES_KEPT_MAX:
            self._answers.clear()
        until = asyncio.get_running_loop().time() + PROBE_FRESH_S
        self._answers[key] = _Answer(done.result(), until)

    async def _ask(self, broker: BrokerRecord) -> Presence:
        presence = await _connect(broker.host, broker.port)
        if presence is Presence.REFUSED:
            await asyncio.sleep(REFUSED_AGAIN_S)
            presence = await _connect(broker.host, broker.port)
        return presence


async def _connect(host: str, port: int) -> Presence:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except OSError as error:
        return Presence.REFUSED if _is_refusal(error) else Presence.UNSURE
    transport.abort()
    return Presence.ALIVE


def _is_refusal(error: OSError) -> bool:
    """A name with several addresses is refused where each of them is."""
    if isinstance(error, ConnectionRefusedError):
        return True
    text = str(error)
    refusals = text.count(f"[Errno {errno.ECONNREFUSED}]")
    return error.errno is None and 0 < refusals == text.count("[Errno ")
