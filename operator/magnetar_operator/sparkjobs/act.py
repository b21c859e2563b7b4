"""Carries out the actions of a SparkJob's plan, and records Events."""

from typing import assert_never

from magnetar_operator.engine.executor import Executor
from magnetar_operator.engine.objects import ObjectWriter
from magnetar_operator.engine.plan import Apply, Outcome, Remove
from magnetar_operator.kube.client import Conflict, KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import CRON_JOB, Object
from magnetar_operator.sparkjobs.plan import Action, Start, Suspend


class SparkJobExecutor(Executor[Action]):
    """Carries out the plan of a SparkJob. A run starts only if all actions before it succeeded."""

    def __init__(self, kube: KubeClient, events: Events, owner: Object) -> None:
        self._kube = kube
        self._owner = owner
        self._writer = ObjectWriter(kube, events, owner)

    def needs_all_before(self, action: Action) -> bool:
        return isinstance(action, Start)

    async def execute(self, action: Action, outcome: Outcome[Action]) -> None:  # noqa: ARG002
        """Carries out one action. An action whose effect already exists succeeds."""
        match action:
            case Apply():
                await self._writer.apply(action)
            case Remove():
                await self._writer.remove(action)
            case Suspend():
                namespace = self._owner["metadata"]["namespace"]
                suspended = {"spec": {"suspend": True}}
                await self._kube.merge(CRON_JOB, namespace, action.name, suspended)
                await self._writer.record("Suspended", action.text, warning=True)
            case Start():
                try:
                    await self._kube.create(action.manifest)
                except Conflict:
                    return  # the Job is named after the request: it was started before
                text = f"{action.step.target}: {action.text}"
                await self._writer.record("RunStarted", text)
            case _:
                assert_never(action)
