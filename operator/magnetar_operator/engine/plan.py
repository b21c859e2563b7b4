"""The vocabulary of all planners: actions, plans and outcomes. Pure: no IO.

A planner compares the desired state with the observed one and returns a `Plan`: the actions, in
order. Plans are frozen. `engine.executor.Executor` carries them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from magnetar_operator.kube.kinds import Kind, Object
from magnetar_operator.models.base import PlanStep


class Action(Protocol):
    """One change to an object, with a sentence that describes it."""

    @property
    def text(self) -> str:
        """The change, in a sentence for people."""

    @property
    def step(self) -> PlanStep:
        """The entry of `status.plan`."""


A = TypeVar("A", bound=Action)
A_co = TypeVar("A_co", bound=Action, covariant=True)


@dataclass(frozen=True, slots=True)
class Apply:
    """Applies a Kubernetes object (server-side apply)."""

    manifest: Object
    verb: Literal["create", "update", "repair"]
    """`repair`: the object had this form before, and another client changed it."""
    text: str
    before: Object | None = None
    """The object as observed."""
    reason: str = ""
    """The reason of the Event that reports it; no Event if empty."""

    @property
    def target(self) -> str:
        """Kind and name."""
        return f"{self.manifest['kind']} {self.manifest['metadata']['name']}"

    @property
    def step(self) -> PlanStep:
        return PlanStep(action=self.verb, target=self.target, text=self.text)


@dataclass(frozen=True, slots=True)
class Remove:
    """Deletes a Kubernetes object by its uid, so never a newer object of the same name."""

    kind: Kind
    name: str
    uid: str
    text: str

    @property
    def target(self) -> str:
        """Kind and name."""
        return f"{self.kind.kind} {self.name}"

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="delete", target=self.target, text=self.text)


@dataclass(frozen=True, slots=True)
class Plan(Generic[A_co]):
    """The actions for one object, in order."""

    actions: Sequence[A_co] = ()
    requeue_s: float | None = None
    """Seconds until the next reconcile; None: the resync interval."""


@dataclass(slots=True)
class Outcome(Generic[A]):
    """The outcome of a plan: which actions were done, refused and skipped."""

    done: list[A] = field(default_factory=list)
    failed: list[tuple[A, Exception]] = field(default_factory=list)
    """Refused actions; the others were carried out all the same."""
    skipped: list[A] = field(default_factory=list)
    """Actions that were not tried because an earlier action failed."""
    stale: Exception | None = None
    """The error that shows that the observation was out of date: observe and plan again."""
