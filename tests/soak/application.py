"""A program of our client that never rests: `python -m tests.soak.application --url URL`.

Rounds (`client_rounds.py`) run in one client, and in the blocking one in a thread. A part of them
is cancelled at a random moment. Once a minute the program waits until none is under way, and prints
a line of JSON: rounds, its CPU, and what is left over. The end of stdin ends it: it closes its
clients, and prints a last line.
"""

import argparse
import asyncio
import gc
import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final

from tests.soak.client_rounds import BODY, NAMESPACE, PARTITIONED, TOPICS, WAIT_S, Rounds

from magnetar.client import Client, ClientError, SubscriptionType
from magnetar.client import sync as blocking
from magnetar.core.log import FIELDS

CANCELLED_SHARE: Final = 0.25
CANCEL_AFTER_S_MEAN: Final = 0.03
"""About as long as most rounds take."""
AT_ONCE_MAX: Final = 8
ROUND_TIMEOUT_S: Final = 180.0
"""A round that takes longer hangs; a restart of the server takes a few seconds."""
REST_S_MAX: Final = 30.0
"""For what ends in the background after the last round."""
BLOCKING_EVERY_S: Final = 5.0
BLOCKING_CLIENT_ROUNDS: Final = 12
"""The blocking client is replaced after so many rounds."""
FAULTS_MAX: Final = 20
LISTENER_LOG: Final = "magnetar.client.listener"
POLL_S: Final = 0.1


@dataclass(slots=True)
class Report:
    """What is left when no round is under way."""

    rounds: int = 0
    cancelled: int = 0
    blocking_rounds: int = 0
    refused: int = 0
    """Rounds that ended with an error of the client, such as while the server restarts."""
    cpu_s: float = 0.0
    tasks: int = 0
    threads: int = 0
    objects: int = 0
    faults: list[str] = field(default_factory=list)


class Failures(logging.Handler):
    """Makes errors that the client logs faults, but not those of a failing message handler."""

    def __init__(self, fault: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._fault = fault

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != LISTENER_LOG:
            self._fault(f"logged: {record.getMessage()} {getattr(record, FIELDS, '')}")


class Application:
    """Runs rounds until it is stopped."""

    def __init__(self, url: str, rate: float, report_every_s: float, rng: Random) -> None:
        self._url, self._rate, self._report_every_s, self._rng = url, rate, report_every_s, rng
        self._report = Report()
        self._errors: Counter[str] = Counter()
        self._running: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._own = asyncio.all_tasks()

    async def run(self) -> Report:
        """Returns the report after the end of all clients."""
        loop = asyncio.get_running_loop()
        watching = asyncio.create_task(_end_of_input(self._stop))
        self._own.add(watching)
        logging.getLogger("magnetar").addHandler(Failures(self._fault))
        stop_blocking = threading.Event()
        thread = threading.Thread(target=self._blocking_rounds, args=(stop_blocking,))
        thread.start()
        try:
            async with Client(self._url) as client:
                rounds = Rounds(client, self._url, self._rng)
                while not self._stop.is_set():
                    await self._work(rounds, loop.time() + self._report_every_s)
                    await self._rest(client)
        finally:
            stop_blocking.set()
            await asyncio.to_thread(thread.join)
        await asyncio.gather(watching)
        await self._check_end()
        return self._report

    async def _work(self, rounds: Rounds, until: float) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop.is_set() and loop.time() < until:
            if len(self._running) < AT_ONCE_MAX:
                task = asyncio.create_task(self._one(*rounds.draw()))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            await asyncio.sleep(self._rng.expovariate(self._rate))

    async def _one(self, name: str, work: Any) -> None:
        cancels = self._rng.random() < CANCELLED_SHARE
        limit_s = self._rng.expovariate(1 / CANCEL_AFTER_S_MEAN) if cancels else ROUND_TIMEOUT_S
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                await work()
        except (ClientError, TimeoutError) as error:
            if not deadline.expired():
                self._report.refused += 1
                self._errors[f"{name}: {type(error).__name__}"] += 1
            elif cancels:
                self._report.cancelled += 1
            else:
                self._fault(f"{name} took more than {ROUND_TIMEOUT_S:g} s")
        except Exception as error:  # noqa: BLE001  # any other one is a fault of the client
            self._fault(f"{name}: {error!r}")
        self._report.rounds += 1

    def _fault(self, text: str) -> None:
        if len(self._report.faults) < FAULTS_MAX:
            self._report.faults.append(text)

    async def _rest(self, client: Client) -> None:
        """Waits until no round is under way, and looks at what is left."""
        if self._running:
            await asyncio.wait(self._running)
        loop = asyncio.get_running_loop()
        until = loop.time() + REST_S_MAX
        while (left := self._left(client)) and loop.time() < until:  # noqa: ASYNC110 - polls
            await asyncio.sleep(POLL_S)
        for fault in left:
            self._fault(fault)
        gc.collect()
        report = self._report
        report.cpu_s = round(time.process_time(), 1)
        report.tasks = len(self._tasks())
        report.threads = threading.active_count()
        report.objects = len(gc.get_objects())
        print(json.dumps({**asdict(report), "errors": dict(self._errors)}), flush=True)

    def _left(self, client: Client) -> list[str]:
        """What the client holds although nothing is open."""
        context = client._ready()
        left = [f"still open: {owned!r}" for owned in client._owned]
        if context.memory.taken or context.memory.waiting:
            left.append(f"memory permits: {context.memory.taken}, {context.memory.waiting} wait")
        if context.received_bytes:
            left.append(f"received bytes: {context.received_bytes}")
        return left + [f"task: {task.get_name()}" for task in self._tasks()]

    def _tasks(self) -> set[asyncio.Task[Any]]:
        """Tasks that are not this program's; an idle client has none."""
        return asyncio.all_tasks() - self._own

    async def _check_end(self) -> None:
        until = asyncio.get_running_loop().time() + REST_S_MAX
        while self._tasks() and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        for task in self._tasks():
            self._fault(f"task after the end: {task.get_name()}")
        for thread in threading.enumerate():
            # Threads of the loop's executor are idle, and end with the loop.
            if thread is not threading.main_thread() and not thread.name.startswith("asyncio_"):
                self._fault(f"thread after the end: {thread.name}")

    # -- the blocking client, in its thread ----------------------------------------------------

    def _blocking_rounds(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with blocking.Client(self._url) as client:
                for number in range(BLOCKING_CLIENT_ROUNDS):
                    if stop.wait(BLOCKING_EVERY_S):
                        return
                    try:
                        _blocking_round(client, number)
                    except (ClientError, TimeoutError) as error:
                        self._errors[f"blocking: {type(error).__name__}"] += 1
                    except Exception as error:  # noqa: BLE001  # as above
                        self._fault(f"blocking: {error!r}")
                    self._report.blocking_rounds += 1


def _blocking_round(client: blocking.Client, number: int) -> None:
    topic = PARTITIONED if number % 3 == 0 else f"persistent://{NAMESPACE}/soak-{number % TOPICS}"
    with (
        client.consumer(topic, "blocking", type=SubscriptionType.SHARED) as consumer,
        client.producer(topic) as producer,
        client.reader(topic) as reader,
    ):
        for future in [producer.send_nowait(BODY) for _ in range(20)]:
            future.result(ROUND_TIMEOUT_S)
        consumer.ack(consumer.receive(WAIT_S))
        consumer.nack(consumer.receive(WAIT_S))
        reader.read(WAIT_S)
        consumer.unsubscribe(force=True)
    if number % 4 == 0:
        with client.table_view(topic) as view:
            view.refresh()


async def _end_of_input(stop: asyncio.Event) -> None:
    await asyncio.to_thread(sys.stdin.read)
    stop.set()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if something is left over, or failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--rate", type=float, default=2.0, help="rounds per second")
    parser.add_argument("--report-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    rng = Random(options.seed)

    async def run() -> Report:
        return await Application(options.url, options.rate, options.report_every, rng).run()

    report = asyncio.run(run())
    print(json.dumps(asdict(report)), flush=True)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
