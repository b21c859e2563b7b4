"""An operator's process over a fake clock and a real API server, that dies at a chosen await.

`Process` is what `main.run` puts together (lease, queue of looks, the parts' reconcilers), but for
kopf: what watches would tell is listed (`World.objects`) whenever the operator has nothing to do,
and everything else has its turn then, too (`World.settle`: pods become ready, drains go on). It has
settled when nobody wants to look before the resync, and a resync has written nothing.

Every request that changes something is noted where it leaves, also those of a process that has
died: `Log`. Bounds: LOOKS_S_MAX of fake time to settle.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tests.support.stepped_loop import (
    Death,
    FakeClock,
    Killed,
    Point,
    SteppedLoop,
    real_requests,
)

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.clock import utc
from magnetar_operator.engine.context import Context
from magnetar_operator.engine.queue import ObjectKey, ReconcileQueue
from magnetar_operator.kube.client import KubeClient, Unreachable
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import Kind, Object
from magnetar_operator.kube.lease import Leadership
from magnetar_operator.settings import Settings

PACKAGE: Final = "magnetar_operator"
RESYNC_S: Final = 15.0
RESTS_S: Final = 1.2 * RESYNC_S
LOOKS_S_MAX: Final = 240.0
CALL_S_MAX: Final = 150.0
LEASE: Final = "magnetar-operator"
DONE: Final = (200, 202, 204)


@dataclass(slots=True)
class Log:
    """What changed something, or tried to: method, path, answer's status (None: not known)."""

    sent: list[tuple[str, str, int | None]] = field(default_factory=list)

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _ in self.sent if not path.endswith(LEASE)]

    @property
    def deletions(self) -> list[str]:
        """The paths of requested deletions."""
        return [path for method, path, _ in self.sent if method == "DELETE"]

    @property
    def deleted(self) -> Counter[str]:
        """Paths, as often as the answer was that it is done."""
        return Counter(
            path for method, path, status in self.sent if method == "DELETE" and status in DONE
        )

    def admin(self, method: str, path: str, status: int | None) -> None:
        """A request to the brokers; a schema's version is asked by POST."""
        if method != "GET" and not path.endswith("/version"):
            self.sent.append((method, path, status))


class MortalKube(KubeClient):
    """Sends nothing after its process died."""

    loop: SteppedLoop
    log: Log

    def _send(self, method: str, path: str, *rest: Any) -> Object:
        if self.loop.dead:
            raise Unreachable(0, "", "the process is dead")
        status: int | None = None
        try:
            answer = super()._send(method, path, *rest)
            status = 200
            return answer
        except Exception as error:
            status = getattr(error, "status", None)
            raise
        finally:
            if method != "GET":
                self.log.sent.append((method, path, status))

    def end(self) -> None:
        """What is being answered is."""
        self._threads.shutdown()
        self._api.close()


class Aside:
    """A thread with a loop in real time, for everything except the operator."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="aside", daemon=True)
        self._thread.start()

    def do(self, what: Coroutine[Any, Any, Any], wait_s: float = CALL_S_MAX) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(wait_s)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_S_MAX)
        self.loop.close()


class World(Protocol):
    """Everything but the operator."""

    namespace: str
    kinds: tuple[Kind, ...]
    """That the operator watches."""
    settings: Settings

    def register(self, context: Context) -> None:
        """Registers the reconcilers of the kinds, as `main.PARTS` do."""

    def objects(self, kind: Kind) -> list[Object]: ...

    def settle(self) -> bool:
        """Lets all that goes by itself come to rest; whether anything that is owned changed."""

    def heals(self) -> bool:
        """Waits for slow changes that no watch reports; returns whether it had to wait."""


class Process:
    """One operator process. `run` until it has settled or died; it can be used once."""

    def __init__(self, world: World, clock: FakeClock, log: Log, dies: Death | None = None) -> None:
        self._world = world
        self._clock = clock
        self._log = log
        self._told = -1
        self._rested, self._rests_until = -1, 0.0
        self._acted_points = 0
        self._done = asyncio.Event()
        self._fed: dict[ObjectKey, Object] = {}
        self.loop = SteppedLoop(clock, PACKAGE, dies, self._idle)
        self._kubes = [self._kube() for _ in range(2)]
        self._work: ReconcileQueue | None = None
        self._ends_at = clock.monotonic() + LOOKS_S_MAX

    @property
    def points(self) -> list[Point]:
        """Until there was nothing to do for the first time."""
        return self.loop.points[: self._acted_points]

    def _kube(self) -> MortalKube:
        client = MortalKube.connect()
        client.loop, client.log = self.loop, self._log
        return client

    def run(self) -> bool:
        """Whether it died."""
        try:
            with real_requests(self._log.admin):
                try:
                    self.loop.run_until_complete(self._whole())
                except Killed:
                    return True
                finally:
                    for kube in self._kubes:
                        kube.end()
                    self.loop.bury()
            return False
        finally:
            self._work = None

    async def _whole(self) -> None:
        kube, lease_kube = self._kubes
        clock = self._clock
        identity = f"operator-{random.randbytes(4).hex()}"
        leadership = Leadership(lease_kube, self._world.namespace, LEASE, identity, clock.monotonic)
        kube.guard = leadership.check
        work = ReconcileQueue(self._world.settings.workers, RESYNC_S)
        events = Events(kube, lambda: utc(clock))
        clients = AdminClients(clock)
        context = Context(self._world.settings, kube, events, work, clients, clock)
        self._world.register(context)
        try:
            await leadership.take()
            self._work = work
            work.start()
            keeping = asyncio.create_task(leadership.keep())
            self._feed()
            await self._done.wait()
            await work.stop()
            keeping.cancel()
            await asyncio.wait({keeping})
        finally:
            await clients.close()
        await leadership.release()

    # -- the others' turn ------------------------------------------------------------------------

    def _idle(self) -> None:
        """Called when the operator only waits for the time to pass."""
        if self._work is None or self._done.is_set():
            return
        writes = len(self._log.writes)
        if writes != self._told:
            self._told = writes
            changed = self._world.settle()
            self._feed(owned=changed)
            return
        nobody = not self._work._busy and not self._work.waiting
        soonest = min(self._work._due_at.values(), default=float("inf"))
        if nobody and soonest - self._clock.monotonic() > RESYNC_S / 2:
            self._acted_points = self._acted_points or len(self.loop.points)
            if self._rested != writes:
                # Before the last pass: ledgers that heal after a reconcile has observed them, and
                # before `heals` is called below, would leave a status (or a disruption budget) of
                # the time before. Healing is real time, and the pass takes hardly any of that.
                self._world.heals()
                self._rested, self._rests_until = writes, self._clock.monotonic() + RESTS_S
            elif self._clock.monotonic() >= self._rests_until:
                if self._world.heals():
                    self._rests_until = self._clock.monotonic() + RESTS_S
                else:
                    self._done.set()
        elif self._world.settle():
            self._feed(owned=True)
        if self._clock.monotonic() > self._ends_at:
            statuses = [
                obj.get("status") for kind in self._world.kinds for obj in self._world.objects(kind)
            ]
            raise AssertionError(f"it does not settle: {statuses}")

    def _feed(self, *, owned: bool = False) -> None:
        """Reports the objects as watches would."""
        assert self._work is not None
        there: dict[ObjectKey, Object] = {}
        for kind in self._world.kinds:
            for obj in self._world.objects(kind):
                key = ObjectKey(kind.kind, self._world.namespace, obj["metadata"]["name"])
                there[key] = obj
                self._work.changed(key, obj)
                if owned:
                    self._work.enqueue(key)
        for key in set(self._fed) - set(there):
            self._work.deleted(key)
        self._fed = there


@dataclass(slots=True)
class Course:
    """What came of a change, through as many operators as it took."""

    points: list[Point]
    """Of the last of them, until there was nothing to do for the first time."""
    log: Log
    killed: int
    """How many died."""


def course(world: World, clock: FakeClock, deaths: Iterable[Death] = ()) -> Course:
    """Operators that die so, one after the other, as long as they meet their death; then one that
    does not: it goes on until a whole pass of its has written nothing."""
    log = Log()
    killed = 0
    for death in (*deaths, None):
        process = Process(world, clock, log, death)
        if not process.run():
            break
        killed += 1
    return Course(process.points, log, killed)


def at_point(number: int) -> Death:
    return lambda now, _: now == number


def at_place(place: Point) -> Death:
    """The first time that it comes there."""
    return lambda _, point: point == place


def chosen(points: list[Point], seed: int, more: int) -> tuple[list[int], int]:
    """The first point of each place in the code, and so many others; and how many places."""
    first: dict[Point, int] = {}
    for number, point in enumerate(points):
        first.setdefault(point, number)
    rest = sorted(set(range(len(points))) - set(first.values()))
    sample = random.Random(seed).sample(rest, min(more, len(rest)))
    return sorted({*first.values(), *sample}), len(first)


@contextmanager
def aside() -> Iterator[Aside]:
    background = Aside()
    try:
        yield background
    finally:
        background.stop()
