"""Carries out the actions of a plan, in order.

A subclass per kind implements each action, and declares which refusals do not stop the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic

from magnetar_operator.engine.plan import A, Outcome
from magnetar_operator.kube.client import KubeError, Unreachable
from magnetar_operator.kube.lease import NotLeading


class Executor(ABC, Generic[A]):
    """Carries out the actions of one kind's plans in order; a subclass implements each action.

    Every action may be cancelled and carried out again: applies, and deletes by uid, have the same
    result the second time. The next reconcile plans the remaining actions again.
    """

    refusals: ClassVar[tuple[type[Exception], ...]] = (KubeError,)
    """Errors of an action that do not stop the other actions."""
    rounds: ClassVar[int] = 1
    """2: refused actions are retried once after others succeeded."""

    async def run(self, actions: Sequence[A]) -> Outcome[A]:
        """Carries out the actions. Raises if Kubernetes does not answer or the lease is lost."""
        outcome: Outcome[A] = Outcome()
        await self._run(actions, outcome)
        for _ in range(1, self.rounds):
            if outcome.stale is not None or not (outcome.failed and outcome.done):
                break
            refused = [action for action, _ in outcome.failed]
            outcome.failed = []
            await self._run(refused, outcome)
        return outcome

    async def _run(self, actions: Sequence[A], outcome: Outcome[A]) -> None:
        for index, action in enumerate(actions):
            if outcome.failed and self.needs_all_before(action):
                outcome.skipped.append(action)
                continue
            try:
                await self.execute(action, outcome)
            except (Unreachable, NotLeading):
                raise
            except self.refusals as error:
                outcome.failed.append((action, error))
                if self.is_needed_by_all_after(action):
                    outcome.skipped += actions[index + 1 :]
                    return
                continue
            if outcome.stale is not None:
                return
            outcome.done.append(action)

    @abstractmethod
    async def execute(self, action: A, outcome: Outcome[A]) -> None:
        """Carries out one action; raises one of `refusals` if it is refused."""

    def needs_all_before(self, action: A) -> bool:  # noqa: ARG002
        """Whether the action requires that all actions before it succeeded."""
        return False

    def is_needed_by_all_after(self, action: A) -> bool:  # noqa: ARG002
        """Whether all actions after it require that it succeeds."""
        return False
