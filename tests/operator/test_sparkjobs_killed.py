"""The operator ends before and after each write of its looks at a SparkJob.

Each time a fresh operator goes on from what is there: one request is one run, what a run said is
told, and what was kept for it is let go only then.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.operator.sparkjob_rig import LOOKS_MAX, NIGHTLY, SETTINGS, Rig, rig

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import SPARK_JOB, Object
from magnetar_operator.sparkjobs.reconciler import SparkJobReconciler

pytestmark = [pytest.mark.kube, pytest.mark.timeout(400)]

AT_ONCE = 8
NEVER = 1 << 30


class Killed(BaseException):
    """The process is no more: nothing may catch it."""


@pytest.fixture
async def on(kube_namespace: str, crds: list[str]) -> AsyncIterator[Rig]:
    async with rig(kube_namespace) as test_rig:
        await test_rig.apply_cluster()
        yield test_rig


class Process:
    """One operator, which ends before or after one of its writes."""

    def __init__(self, namespace: str, dies_at: int = NEVER) -> None:
        self._namespace = namespace
        self._dies_at = dies_at
        self.awaits = 0
        self.kube = KubeClient.connect()
        self.kube.request = self._deadly(self.kube.request)  # type: ignore[method-assign]

    def _deadly(self, send: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def sent(method: str, *args: Any) -> Any:
            # To end while it only reads is to end before the next write.
            if method == "GET":
                return await send(method, *args)
            self._await()
            answer = await send(method, *args)
            self._await()
            return answer

        return sent

    def _await(self) -> None:
        if self.awaits >= self._dies_at:
            raise Killed
        self.awaits += 1

    async def settle(self, name: str) -> bool:
        """Reconciles until nothing is due soon; returns whether it was interrupted."""
        handler = SparkJobReconciler(SETTINGS, self.kube, Events(self.kube), AdminClients())
        try:
            for _ in range(LOOKS_MAX):
                obj = await self.kube.get(SPARK_JOB, name, self._namespace)
                after_s = await handler.reconcile(obj)
                if after_s is None or after_s > 1.0:
                    return False
        except Killed:
            return True
        finally:
            await self.kube.close()
        raise AssertionError(f"{name} does not settle")


async def everywhere(
    on: Rig, label: str, prepare: Callable[[str], Awaitable[None]], least: int
) -> list[str]:
    """The names of SparkJobs, one for each write of a reconcile at which its operator ended."""
    await prepare(f"{label}-all")
    whole = Process(on.namespace)
    assert not await whole.settle(f"{label}-all")
    assert whole.awaits > least
    at_once = asyncio.Semaphore(AT_ONCE)

    async def kill_and_go_on(dies_at: int) -> str:
        name = f"{label}-{dies_at}"
        async with at_once:
            await prepare(name)
            # Jobs that wait for others may need one reconcile more or less.
            assert await Process(on.namespace, dies_at).settle(name) or dies_at > least
            assert not await Process(on.namespace).settle(name)
        return name

    return await asyncio.gather(*(kill_and_go_on(at) for at in range(whole.awaits)))


def names(jobs: list[Object]) -> set[str]:
    return {str(job["metadata"]["name"]) for job in jobs}


async def test_one_request_is_one_run(on: Rig) -> None:
    async def prepare(name: str) -> None:
        await on.apply(name=name)

    for name in await everywhere(on, "once", prepare, 10):
        (job,) = names(await on.jobs(name))
        status = await on.status(name)
        assert ([run["name"] for run in status["runs"]], status["lastRequest"]) == ([job], "")


async def test_the_result_of_a_run_is_reported_by_any_surviving_operator(on: Rig) -> None:
    async def prepare(name: str) -> None:
        await on.apply({"historyLimit": 0}, name=name)
        assert not await Process(on.namespace).settle(name)
        (job,) = names(await on.jobs(name))
        await on.succeed(job, ledgers=3)

    for name in await everywhere(on, "told", prepare, 6):
        status = await on.status(name)
        (run,) = status["runs"]
        assert (run["state"], run["result"]) == ("Succeeded", {"ledgers": 3})
        assert status["phase"] == "Succeeded"
        left = [job for job in await on.jobs(name) if "deletionTimestamp" not in job["metadata"]]
        assert not left, "beyond the history"


async def test_a_schedule_and_a_requested_run(on: Rig) -> None:
    async def prepare(name: str) -> None:
        await on.apply(NIGHTLY, name=name, run="now")

    for name in await everywhere(on, "nightly", prepare, 10):
        (job,) = await on.jobs(name)
        assert job["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
        assert (await on.cron(name))["spec"]["schedule"] == NIGHTLY["schedule"]
        assert (await on.status(name))["lastRequest"] == "now"
