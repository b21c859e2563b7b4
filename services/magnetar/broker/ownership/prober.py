"""Finds out whether another broker is alive, by opening a connection to its binary listener.

Two refusals in a row prove that no process listens at the address. A broker withdraws its
registration before it stops listening, so a registered broker that refuses connections has died.
Any other failure proves nothing: the peer may be slow, paused, or cut off.
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
"""How long an answer may be reused."""
REFUSED_AGAIN_S: Final = 0.05
"""The pause between the two attempts that prove a refusal."""
PROBES_KEPT_MAX: Final = 1_024


class Presence(Enum):
    """The result of a probe of a broker."""

    ALIVE = "alive"
    REFUSED = "refused"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class _Answer:
    presence: Presence
    until: float


class Prober:
    """Probes brokers: one probe per broker at a time, shared by all callers."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._answers: dict[tuple[str, int], _Answer] = {}
        self._probes: dict[tuple[str, int], asyncio.Future[Presence]] = {}

    async def probe(self, broker: BrokerRecord) -> Presence:
        """Returns the result of a probe that is at most PROBE_FRESH_S old."""
        key = (broker.broker_id, broker.start)
        loop = asyncio.get_running_loop()
        answer = self._answers.get(key)
        if answer is not None and loop.time() < answer.until:
            return answer.presence
        probe = self._probes.get(key)
        if probe is None:
            probe = self._tasks.start(self._probe(broker), f"probe {broker.broker_id}")
            if probe is None:
                return Presence.UNSURE
            self._probes[key] = probe
            probe.add_done_callback(lambda done: self._probed(key, done))
        return await asyncio.shield(probe)

    def _probed(self, key: tuple[str, int], done: "asyncio.Future[Presence]") -> None:
        del self._probes[key]
        if done.cancelled() or done.exception() is not None:
            return
        if len(self._answers) >= PROBES_KEPT_MAX:
            self._answers.clear()
        until = asyncio.get_running_loop().time() + PROBE_FRESH_S
        self._answers[key] = _Answer(done.result(), until)

    async def _probe(self, broker: BrokerRecord) -> Presence:
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
    """Whether all addresses of the name refused the connection."""
    if isinstance(error, ConnectionRefusedError):
        return True
    text = str(error)
    refusals = text.count(f"[Errno {errno.ECONNREFUSED}]")
    return error.errno is None and 0 < refusals == text.count("[Errno ")
