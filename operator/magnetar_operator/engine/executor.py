"""Carries out the actions of a plan in order, and collects those that are refused.

Every action may be cancelled and carried out again: applies, and deletes by uid, have the same
result the second time. The next reconcile plans again what was not done.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic

from magnetar_operator.engine.plan import A, Apply, Outcome, Remove
from magnetar_operator.kube.client import Conflict, KubeClient, KubeError, Unreachable
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import Object
from magnetar_operator.kube.lease import NotLeading


class Executor(ABC, Generic[A]):
    """Carries out the actions of one kind's plans; a subclass implements each action."""

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


class ObjectWriter:
    """Applies and deletes Kubernetes objects for one owner, and records the owner's Events."""

    def __init__(self, kube: KubeClient, events: Events, owner: Object) -> None:
        self._kube = kube
        self._events = events
        self._owner = owner

    async def apply(self, action: Apply) -> None:
        """Applies an object; records an Event if the action has a reason and anything changed."""
        applied = await self._kube.apply(action.manifest, before=action.before)
        if applied.changed and action.reason:
            # The text of a creation already names the object.
            text = action.text if action.verb == "create" else f"{action.target}: {action.text}"
            await self.record(action.reason, text, warning=action.verb == "repair")

    async def remove(self, action: Remove, reason: str = "Removed") -> None:
        """Deletes this very object; does nothing if a newer object has its name."""
        namespace = self._owner["metadata"]["namespace"]
        try:
            await self._kube.delete(action.kind, action.name, namespace, uid=action.uid)
        except Conflict:
            return  # the next reconcile decides about the new object
        await self.record(reason, f"{action.target}: {action.text}")

    async def record(self, reason: str, text: str, *, warning: bool = False) -> None:
        """Records an Event that regards the owner."""
        await self._events.record(
            self._owner, reason, text, type="Warning" if warning else "Normal"
        )
