"""What a redrive does, and how far it is."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import uuid4

from magnetar.broker.redrive.letters import Skip
from magnetar.core.names import TopicName
from magnetar.policies.selector import Message


class State(StrEnum):
    """The state of a redrive."""

    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be moved."""

    to: TopicName | None
    """None: each message to its origin."""
    accepts: Callable[[Message], bool] | None
    """None: every message."""
    rate: float | None
    """Messages per second; None: no limit."""
    limit: int | None
    dry_run: bool


@dataclass(slots=True)
class Progress:
    """The counts of a redrive since its start."""

    dry_run: bool = False
    state: State = State.RUNNING
    examined: int = 0
    matched: int = 0
    moved: int = 0
    skipped: Counter[Skip] = field(default_factory=Counter)
    last_position: str = ""
    error: str = ""
    resumable: bool = False
    """Whether `error` passes: the same order, started again, continues."""
    id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def ended(self) -> bool:
        """Whether the redrive has ended."""
        return self.state not in (State.RUNNING, State.STOPPING)

    def stop(self) -> None:
        """Has the redrive end after the group that is being moved."""
        if self.state is State.RUNNING:
            self.state = State.STOPPING

    def rescanned(self) -> None:
        """Forgets the counts of a scan that is repeated, except of what was moved."""
        self.examined = self.matched = self.moved
        self.skipped.clear()


class Rights(Protocol):
    """The rights of the role that has started a redrive, asked again for each group."""

    async def check_source(self) -> None:
        """Raises AuthorizationError if the role may no longer consume the dead letters."""

    async def produce(self, target: TopicName) -> bool:
        """Whether the role may produce to a topic."""
