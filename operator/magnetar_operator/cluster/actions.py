"""The actions of a cluster's plan; `act` carries them out. Pure: no IO."""

from dataclasses import dataclass, field

from magnetar_operator.engine.plan import Apply, Remove
from magnetar_operator.kube.kinds import Kind
from magnetar_operator.models.base import PlanStep
from magnetar_operator.security.plan import Issue


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets only the number of pods, while a new pod template must wait."""

    kind: Kind
    name: str
    replicas: int
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="scale", target=f"{self.kind.kind} {self.name}", text=self.text)


@dataclass(frozen=True, slots=True)
class ReplacePod:
    """Deletes one pod, so that its StatefulSet creates it again from the newest template."""

    name: str
    uid: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="restart", target=f"Pod {self.name}", text=self.text)


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Requests a bookie's drain, also again after a refusal or with an outdated proof."""

    bookie: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="drain", target=f"Bookie {self.bookie}", text=self.text)


@dataclass(frozen=True, slots=True)
class EndDrain:
    """Ends a drain: the bookie takes ledgers again, or was removed and its name is free."""

    bookie: str
    text: str
    reason: str = "DrainEnds"
    """The reason of the Event."""

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="end drain", target=f"Bookie {self.bookie}", text=self.text)


@dataclass(frozen=True, slots=True)
class DeleteVolume:
    """Deletes the volume claim of a bookie whose ledgers are proven to be elsewhere."""

    name: str
    uid: str
    text: str

    @property
    def step(self) -> PlanStep:
        target = f"PersistentVolumeClaim {self.name}"
        return PlanStep(action="delete", target=target, text=self.text)


@dataclass(frozen=True, slots=True)
class IssueSecret:
    """Writes one Secret of the cluster. Its text has nothing of the content."""

    issue: Issue = field(repr=False)

    @property
    def text(self) -> str:
        return self.issue.text

    @property
    def step(self) -> PlanStep:
        return self.issue.plan_step


@dataclass(frozen=True, slots=True)
class ClearRequest:
    """Removes an annotation of the MagnetarCluster once its request is fulfilled."""

    annotation: str
    text: str

    @property
    def step(self) -> PlanStep:
        return PlanStep(action="clear", target=f"Annotation {self.annotation}", text=self.text)


Action = (
    Apply
    | Remove
    | Scale
    | ReplacePod
    | BeginDrain
    | EndDrain
    | DeleteVolume
    | ClearRequest
    | IssueSecret
)
