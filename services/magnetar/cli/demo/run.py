"""Runs the demo: starts the processes, executes the plan, and waits until all messages were seen.

The processes are this one (plan, checker, display), the server, the publisher, and one per
consumer. Publisher and consumers report over pipes. Every wait has a timeout.
"""

import asyncio
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from magnetar.cli.demo.admin import AdminFailed, backlog, create_partitioned_topic
from magnetar.cli.demo.checker import Checker, Verdict
from magnetar.cli.demo.display import Display
from magnetar.cli.demo.plan import CONSUMERS_AT_START, Action, Step
from magnetar.cli.demo.progress import Progress
from magnetar.cli.demo.reports import ACKED, RECEIPT, SEEN, SENT, Report
from magnetar.cli.demo.server import OwnServer, Server, ServerFailed
from magnetar.cli.demo.workers import Worker

PARTITIONS: Final = 4
TICK_S: Final = 0.05
STALL_S: Final = 60.0
BACKLOG_TIMEOUT_S: Final = 30.0
SUBSCRIPTION: Final = "aircraft"

PUBLISHER_MODULE: Final = "magnetar.cli.demo.publisher"
CONSUMER_MODULE: Final = "magnetar.cli.demo.consumer"


class DemoFailed(Exception):
    """The demo cannot continue. The text gives the reason."""


class Demo:
    """One run of the demo."""

    def __init__(
        self,
        server: Server,
        checker: Checker,
        steps: Sequence[Step],
        display: Display,
        *,
        topic: str,
        total: int,
        batching: bool,
        directory: Path,
    ) -> None:
        self.progress = Progress(total)
        self._server = server
        self._checker = checker
        self._steps = list(steps)
        self._display = display
        self._topic = topic
        self._batching = batching
        self._directory = directory
        self._publisher: Worker | None = None
        self._consumers: list[Worker] = []
        self._gone: list[Worker] = []
        self._last_report = 0.0
        self._killed_at = 0.0
        self._acked: set[int] = set()

    async def run(self) -> Verdict:
        """Publishes and consumes all flights; raises DemoFailed if a process fails or stalls."""
        try:
            await self._start()
            while not self._finished():
                await asyncio.sleep(TICK_S)
                self._check_alive()
                while self._steps and self._done() >= self._steps[0].at:
                    await self._execute(self._steps.pop(0))
                self._display.show(self.progress, self._checker)
            await self._await_no_backlog()
        except (ServerFailed, AdminFailed) as error:
            raise DemoFailed(str(error)) from error
        finally:
            await self._end()
        return self._checker.verdict()

    async def _start(self) -> None:
        await self._server.start()
        await create_partitioned_topic(self._server.http_url, self._topic, PARTITIONS)
        self._last_report = time.monotonic()
        for _ in range(CONSUMERS_AT_START):
            await self._join()
        arguments = ["--service-url", self._server.service_url, "--topic", self._topic]
        arguments += ["--limit", str(self.progress.total)]
        self._publisher = await Worker.start(
            PUBLISHER_MODULE,
            "publisher",
            [*arguments, "--batching"] if self._batching else arguments,
            str(self._directory / "publisher.log"),
            partial(self._on_reports, set()),
        )

    def _on_reports(self, unacked: set[int], reports: list[Report]) -> None:
        """Handles reports of a process; `unacked` has the messages since its last ACKED."""
        checker, progress = self._checker, self.progress
        # The publisher blocks until receipts arrive again, and reports only then.
        flowing = checker.receipted == progress.total
        for kind, partition, number, a, b, c in reports:
            if kind == SEEN:
                checker.sighting(number, a, b)
                unacked.add(number)
            elif kind == RECEIPT:
                checker.receipt(number, partition, (a, b, c))
                flowing = True
            elif kind == ACKED:
                self._acked |= unacked
                unacked.clear()
            elif kind == SENT:
                progress.sent += number
        now = time.monotonic()
        self._last_report = now
        progress.started = progress.started or now
        progress.acked = len(self._acked)
        if flowing and self._killed_at and progress.server_up:
            progress.recovery_s.append(now - self._killed_at)
            self._killed_at = 0.0
        elapsed = now - progress.started
        if not progress.receipted_all_s and checker.receipted == progress.total:
            progress.receipted_all_s = elapsed
        if not progress.seen_all_s and checker.seen == progress.total:
            progress.seen_all_s = elapsed

    def _done(self) -> float:
        return (self._checker.receipted + self._checker.seen) / (2 * self.progress.total)

    def _finished(self) -> bool:
        acked = self.progress.acked >= self.progress.total
        return self._checker.complete and acked and not self._steps

    def _check_alive(self) -> None:
        publisher = self._publisher
        for worker in [*self._consumers, *([publisher] if publisher else [])]:
            ended_well = worker is publisher and worker.returncode == 0
            if not worker.running and not worker.dismissed and not ended_well:
                raise DemoFailed(
                    f"{worker.name} ended with {worker.returncode} by itself: "
                    f"see its log in {self._directory}"
                )
        if time.monotonic() - self._last_report > STALL_S:
            raise DemoFailed(
                f"no progress for {STALL_S:.0f} s: {self._checker.receipted} receipted, "
                f"{self._checker.seen} seen, {self.progress.acked} acked of "
                f"{self.progress.total}; logs in {self._directory}"
            )

    async def _execute(self, step: Step) -> None:
        if step.action is Action.KILL_SERVER:
            await self._kill_server()
        elif step.action is Action.JOIN:
            worker = await self._join()
            self._display.event(f"{worker.name} joins")
        else:
            worker = self._consumers.pop(int(step.pick * len(self._consumers)))
            self._gone.append(worker)
            self.progress.consumers = len(self._consumers)
            if step.action is Action.LEAVE:
                worker.signal(signal.SIGTERM)
                self.progress.consumers_left += 1
                self._display.event(f"{worker.name} leaves")
            else:
                worker.signal(signal.SIGKILL)
                self.progress.consumers_killed += 1
                self._display.event(f"{worker.name} is killed with -9")

    async def _join(self) -> Worker:
        self.progress.consumers_joined += 1
        name = f"consumer-{self.progress.consumers_joined}"
        arguments = ["--service-url", self._server.service_url, "--topic", self._topic]
        arguments += ["--subscription", SUBSCRIPTION, "--name", name]
        log = str(self._directory / f"{name}.log")
        on_reports = partial(self._on_reports, set())
        worker = await Worker.start(CONSUMER_MODULE, name, arguments, log, on_reports)
        self._consumers.append(worker)
        self.progress.consumers = len(self._consumers)
        return worker

    async def _kill_server(self) -> None:
        if not isinstance(self._server, OwnServer):
            return
        self.progress.server_kills += 1
        self._killed_at = time.monotonic()
        self.progress.server_up = False
        await self._server.kill()
        self._display.event("the server is killed with -9")
        await self._server.start()
        self.progress.restart_s.append(time.monotonic() - self._killed_at)
        self._last_report = time.monotonic()
        self.progress.server_up = True
        self._display.event(f"the server is ready again after {self.progress.restart_s[-1]:.2f} s")

    async def _await_no_backlog(self) -> None:
        """Waits until the subscription has no backlog: acked messages must stay acked."""
        deadline = time.monotonic() + BACKLOG_TIMEOUT_S
        while left := await backlog(self._server.http_url, self._topic, SUBSCRIPTION):
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"all messages were acked, but the subscription still has a backlog of {left}"
                )
            self._display.show(self.progress, self._checker)
            await asyncio.sleep(TICK_S)

    async def _end(self) -> None:
        """Ends all processes, also after a failure."""
        workers = [*self._consumers, *self._gone]
        for worker in workers:
            if not worker.dismissed:
                worker.signal(signal.SIGTERM)
        if self._publisher is not None:
            if not self._checker.complete:
                self._publisher.signal(signal.SIGKILL)
            workers.append(self._publisher)
        for worker in workers:
            await worker.ended()
        self._display.show(self.progress, self._checker)
        await self._server.stop()
