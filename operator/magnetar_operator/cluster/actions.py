"""What the planner may ask for. Each says itself in a sentence; `act` knows how to do it."""

from dataclasses import dataclass
from typing import Literal

from magnetar_operator.api_kinds import Kind, Object
from magnetar_operator.models.base import PlanStep


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of an object."""

    manifest: Object
    verb: Literal["create", "update", "repair"]
    """`repair`: somebody else changed what is ours."""
    text: str
    before: Object | None = None
    reason: str = ""
    """Of an Event; none where empty."""

    @property
    def step(self) -> PlanStep:
        metadata = self.manifest["metadata"]
        target = f"{self.manifest['kind']} {metadata['name']}"
        return PlanStep(action=self.verb, target=target, text=self.text)


@dataclass(frozen=True, slots=True)
class Remove:
    """Deletes an object of ours that is no longer wanted; never a pod, volume or StatefulSet."""

    kind: Kind
    name: str
    uid: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="delete", target=f"{self.kind.kind} {self.name}", text=self.text)


@dataclass(frozen=True, slots=True)
class Scale:
    """Only the number of pods, where a new form must wait."""

    kind: Kind
    name: str
    replicas: int
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="scale", target=f"{self.kind.kind} {self.name}", text=self.text)


@dataclass(frozen=True, slots=True)
class ReplacePod:
    """Deletes one pod, so that its StatefulSet makes it anew in the newest form."""

    name: str
    uid: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="restart", target=f"Pod {self.name}", text=self.text)


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Asks for a bookie to be emptied and proven; again where that was refused or grew old."""

    bookie: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="drain", target=f"Bookie {self.bookie}", text=self.text)


@dataclass(frozen=True, slots=True)
class EndDrain:
    """The bookie takes new ledgers again; or it is gone, and its name may be used again."""

    bookie: str
    text: str
    reason: str = "DrainEnds"
    """Of the Event."""

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="end drain", target=f"Bookie {self.bookie}", text=self.text)


@dataclass(frozen=True, slots=True)
class DeleteVolume:
    """Deletes the claim of a bookie whose ledgers' copies are proven elsewhere."""

    name: str
    uid: str
    text: str

    @property
    def step(self) -> PlanStep:
        target = f"PersistentVolumeClaim {self.name}"
        return PlanStep(action="delete", target=target, text=self.text)


@dataclass(frozen=True, slots=True)
class ClearRequest:
    """Takes an annotation of the MagnetarCluster away: what it asked for is done."""

    annotation: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="clear", target=f"Annotation {self.annotation}", text=self.text)


Action = Apply | Remove | Scale | ReplacePod | BeginDrain | EndDrain | DeleteVolume | ClearRequest
