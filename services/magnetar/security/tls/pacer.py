"""Handshakes in small slices of the event loop's time, with a deadline and a bound.

A handshake costs a signature: half a millisecond or more. If a thousand clients connect at once,
for example after a broker has restarted, all of their handshakes in one turn of the loop would
delay every receipt by half a second. The pacer runs them for SLICE_S per turn, in the order of
their arrival; between two turns the loop serves its other connections.

Bounds: UNFINISHED_MAX handshakes in progress; beyond it, the pacer ends the oldest one, whose
client most likely does not intend to finish. HANDSHAKE_TIMEOUT_S each. Until
its first bytes arrive, a connection holds no TLS state.
"""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, Protocol

SLICE_S: Final = 0.002
HANDSHAKE_TIMEOUT_S: Final = 10.0
UNFINISHED_MAX: Final = 4_096
CHECK_S: Final = 1.0
RECEIVE_BYTES: Final = 256 << 10
REASONS_MAX: Final = 64
"""Different reasons of failures that are counted; OpenSSL has some 30 that a peer can cause."""
OTHER_REASONS: Final = "other"


class Handshake(Protocol):
    """A connection whose handshake is under way."""

    def advance(self) -> None:
        """Computes the next step from the bytes received so far."""

    def give_up(self, reason: str) -> None:
        """Ends the connection."""


@dataclass(slots=True)
class HandshakeStats:
    """The handshakes of a process so far."""

    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    """Handshakes past their deadline, or ended because of UNFINISHED_MAX."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why handshakes of clients failed, in OpenSSL's words."""

    def failed_for(self, reason: str) -> None:
        """Counts a client's handshake that failed."""
        known = reason in self.reasons or len(self.reasons) < REASONS_MAX
        self.reasons[reason if known else OTHER_REASONS] += 1


class Pacer:
    """Runs the handshakes of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stats = HandshakeStats()
        self.received = memoryview(bytearray(RECEIVE_BYTES))
        """Every connection's ciphertext passes through here. A transport asks for the buffer,
        receives and reports in one step, so two connections never use it at the same time."""
        self._loop = loop
        self._due: deque[Handshake] = deque()
        self._scheduled = False
        self._spent_s = 0.0
        """The time of handshakes that ran at once, as of `_spent_at`."""
        self._spent_at = 0.0
        self._unfinished: dict[Handshake, float] = {}
        """The unfinished handshakes, in the order of their deadlines."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unfinished(self) -> int:
        """How many handshakes are under way."""
        return len(self._unfinished)

    def begin(self, handshake: Handshake) -> None:
        """Starts the deadline of a handshake."""
        if len(self._unfinished) >= UNFINISHED_MAX:
            self._expire(next(iter(self._unfinished)), "too many handshakes are under way")
        self._unfinished[handshake] = self._loop.time() + HANDSHAKE_TIMEOUT_S
        if self._timer is None:
            self._timer = self._loop.call_later(CHECK_S, self._check)

    def end(self, handshake: Handshake) -> None:
        """Ends the deadline: the handshake is complete or its connection is lost. Idempotent."""
        self._unfinished.pop(handshake, None)

    def due(self, handshake: Handshake) -> None:
        """Schedules the handshake's `advance`; call it once until `advance` was called."""
        self._due.append(handshake)
        self._schedule()

    def now_or_due(self, handshake: Handshake) -> None:
        """As `due`, but calls `advance` at once if no other handshake waits and the slice lasts.

        A client that connects alone does not wait for another turn of the loop. The time of such
        calls counts until the loop has spent as much on other things, so that many connections
        which are readable in one turn take one slice of it.
        """
        began = time.perf_counter()
        spent = max(0.0, self._spent_s - (began - self._spent_at))
        if self._due or spent >= SLICE_S:
            self.due(handshake)
            return
        try:
            handshake.advance()
        finally:
            self._spent_at = time.perf_counter()
            self._spent_s = spent + self._spent_at - began

    def _schedule(self) -> None:
        if self._due and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        due, until = self._due, time.perf_counter() + SLICE_S
        try:
            while due:
                due.popleft().advance()
                if time.perf_counter() >= until:
                    break
        finally:
            self._schedule()  # also after a bug in one handshake: the others go on

    def _check(self) -> None:
        """Ends the handshakes past their deadline."""
        self._timer = None
        now = self._loop.time()
        late = []
        for handshake, deadline in self._unfinished.items():
            if deadline > now:
                break
            late.append(handshake)
        for handshake in late:
            self._expire(handshake, f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s")
        if self._unfinished:
            self._timer = self._loop.call_later(CHECK_S, self._check)

    def _expire(self, handshake: Handshake, reason: str) -> None:
        self._unfinished.pop(handshake, None)
        self.stats.timed_out += 1
        handshake.give_up(reason)


_pacers: dict[asyncio.AbstractEventLoop, Pacer] = {}


def pacer() -> Pacer:
    """Returns the pacer of the running loop."""
    loop = asyncio.get_running_loop()
    paced = _pacers.get(loop)
    if paced is None:
        for old in [other for other in _pacers if other.is_closed()]:
            del _pacers[old]
        paced = _pacers[loop] = Pacer(loop)
    return paced
