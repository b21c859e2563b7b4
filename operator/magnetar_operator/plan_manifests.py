"""`magnetar plan`: the changes that manifests would cause if they were applied now. Reads only.

The operator's own planners compare each document with the running cluster, and the plan shows the
effects that the cluster predicts (`catalog.effects`). A reference is resolved among the manifests
first, then in Kubernetes. If a resource exists in Kubernetes, its status records what was applied
before, so that a field that the manifest no longer names is shown as removed.

Without Kubernetes (`url`), the manifests are compared with one cluster. What was applied before is
then unknown, and MagnetarClusters cannot be planned.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from magnetar_operator.admin.access import no_access
from magnetar_operator.admin.client import AdminClients
from magnetar_operator.admin.view import Clusters
from magnetar_operator.catalog.effects import count, human_bytes
from magnetar_operator.catalog.plan import Verb
from magnetar_operator.catalog.plan_text import ordered, steps_or_create
from magnetar_operator.catalog.references import (
    ORDER,
    BadSpec,
    NotYet,
    References,
    applied_there,
    kind_named,
    moved,
    parse_spec,
)
from magnetar_operator.catalog.state import desired_of, unsupported
from magnetar_operator.cluster.access import ClusterAccess
from magnetar_operator.cluster.assumed_settings import settings_of
from magnetar_operator.cluster.manifests.names import cluster_of
from magnetar_operator.cluster.observe import Observer
from magnetar_operator.cluster.plan import plan
from magnetar_operator.cluster.refusals import refusals
from magnetar_operator.engine.annotations import ignored
from magnetar_operator.engine.queue import ObjectKey
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER, Object
from magnetar_operator.models.kinds import BY_KIND
from magnetar_operator.settings import Settings

NOTHING, FAILED, CHANGES, LOSES_DATA = 0, 1, 2, 3
"""Exit codes."""
NAMESPACE_DEFAULT: Final = "default"
DOCUMENTS_MAX: Final = 10_000

Step = dict[str, Any]


class CannotPlan(Exception):
    """A document cannot be planned; the text names it and gives the reason."""


@dataclass(slots=True)
class Findings:
    """The steps of all plans, those that delete data first, and the number of documents."""

    steps: list[Step] = field(default_factory=list)
    resources: int = 0

    @property
    def code(self) -> int:
        if any(step["losesData"] for step in self.steps):
            return LOSES_DATA
        if any(_refused(step) for step in self.steps):
            return FAILED
        return CHANGES if self.steps else NOTHING

    def document(self) -> dict[str, Any]:
        """The findings as a JSON document."""
        return {
            "resources": self.resources,
            "exitCode": self.code,
            "deletes": {
                "bytes": sum(step["bytes"] for step in self.steps if step["losesData"]),
                "topics": sum(step["topics"] for step in self.steps if step["losesData"]),
            },
            "steps": self.steps,
        }

    def lines(self) -> Iterable[str]:
        """The findings as lines for people."""
        groups = (
            ("Deletes data:", "!", [step for step in self.steps if step["losesData"]]),
            ("Refused, and not done:", "x", [step for step in self.steps if _refused(step)]),
            ("Changes:", "", [step for step in self.steps if _is_plain(step)]),
        )
        for title, mark, members in groups:
            if members:
                yield title
            for step in members:
                sign = mark or _MARKS.get(step["action"], "~")
                yield f"  {sign} {step['target']}: {step['text']}"
        yield self.summary()

    def summary(self) -> str:
        """The last line, which counts changes and refusals."""
        resources = count(self.resources, "resource")
        if not self.steps:
            return f"Nothing to do: {resources} as specified."
        changes = sum(not _refused(step) for step in self.steps)
        text = f"Plan: {count(changes, 'change')} for {resources}"
        if refused := len(self.steps) - changes:
            text += f", {refused} refused"
        if self.code == LOSES_DATA:
            size = sum(step["bytes"] for step in self.steps)
            text += f"; deletes {human_bytes(size)}" if size else "; deletes data"
        return f"{text}."


_MARKS: Final[Mapping[str, str]] = {"create": "+", "remove": "-", "delete": "-"}


def _refused(step: Step) -> bool:
    return bool(step["action"] == Verb.REFUSE.value)


def _is_plain(step: Step) -> bool:
    """Whether a step is carried out and deletes no data."""
    return not step["losesData"] and not _refused(step)


def read_documents(paths: Iterable[str], stdin: str = "") -> list[Object]:
    """Reads files and folders (*.yaml, *.yml, *.json); `-` is `stdin`. Raises CannotPlan."""
    documents: list[Object] = []
    for path in paths:
        files = [Path(path)] if path != "-" else []
        if files and files[0].is_dir():
            files = sorted(p for p in files[0].iterdir() if p.suffix in (".yaml", ".yml", ".json"))
        try:
            texts = [(str(file), file.read_text()) for file in files] or [("-", stdin)]
        except (OSError, UnicodeDecodeError) as error:
            raise CannotPlan(f"{path}: {error}") from error
        for name, text in texts:
            documents += _parsed(name, text)
    if len(documents) > DOCUMENTS_MAX:
        raise CannotPlan(f"{len(documents)} documents are more than {DOCUMENTS_MAX}")
    return documents


def _parsed(name: str, text: str) -> list[Object]:
    """The documents of our own kinds; others are skipped."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise CannotPlan(f"{name}: {error}") from error
    flat: list[Any] = []
    for obj in documents:
        is_list = isinstance(obj, dict) and obj.get("kind") == "List"
        flat += obj.get("items") or [] if is_list else [obj]
    ours = []
    for obj in flat:
        if not isinstance(obj, dict) or obj.get("apiVersion") != API_VERSION:
            continue
        kind, metadata = obj.get("kind"), obj.get("metadata")
        if kind not in BY_KIND or not isinstance(metadata, dict) or not metadata.get("name"):
            raise CannotPlan(f"{name}: a document of {API_VERSION} without a known kind and a name")
        ours.append(obj)
    return ours


class _Files:
    """The manifests as siblings of each other (`references.Siblings`)."""

    def __init__(self, documents: Iterable[Object]) -> None:
        self._objects = {_key(obj): obj for obj in documents}

    def latest(self, key: ObjectKey) -> Object | None:
        return self._objects.get(key)

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]:
        return [
            obj
            for key, obj in self._objects.items()
            if key.kind == kind and namespace in (None, key.namespace)
        ]

    def enqueue(self, key: ObjectKey, after_s: float = 0.0) -> None:
        """Does nothing: no object is reconciled here."""


def _key(obj: Object) -> ObjectKey:
    return ObjectKey(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])


class PlanFiles:
    """Plans manifests. Call `run`, then `close`."""

    def __init__(
        self,
        kube: KubeClient | None,
        url: str = "",
        namespace: str = "",
        clients: AdminClients | None = None,
    ) -> None:
        self._kube = kube
        self._url = url
        self._namespace = namespace or NAMESPACE_DEFAULT
        access = no_access if kube is None else ClusterAccess(kube, Settings.from_environment()).of
        self._clients = clients or AdminClients(access=access)
        self._clusters = Clusters(self._clients)

    async def close(self) -> None:
        """Closes the connections to the clusters."""
        await self._clients.close()

    async def run(self, documents: Iterable[Object]) -> Findings:
        """Plans all documents. Raises CannotPlan, and the clients' errors if they get no answer."""
        objects = [self._complete(obj) for obj in documents]
        references = References(self._kube, _Files(objects))
        order = (CLUSTER.kind, *ORDER)
        findings = Findings()
        for obj in sorted(
            (obj for obj in objects if obj["kind"] in order),
            key=lambda obj: order.index(obj["kind"]),
        ):
            findings.resources += 1
            try:
                if obj["kind"] == CLUSTER.kind:
                    findings.steps += await self._cluster(obj)
                else:
                    findings.steps += await self._resource(obj, references)
            except (BadSpec, NotYet, msgspec.ValidationError) as error:
                raise CannotPlan(f"{_key(obj)}: {error}") from error
        findings.steps = ordered(findings.steps)
        return findings

    def _complete(self, obj: Object) -> Object:
        """The document with its Kubernetes namespace, and with `url` if it was given."""
        metadata = {"namespace": self._namespace, **obj["metadata"]}
        spec = dict(obj.get("spec") or {})
        if self._url:
            spec.pop("clusterRef", None)
            spec.pop("adminSecret", None)  # it has the credentials for another address
            spec["adminUrl"] = self._url
        return {**obj, "metadata": metadata, "spec": spec}

    async def _stored(self, obj: Object) -> Object | None:
        """The object in Kubernetes; None if it does not exist."""
        if self._kube is None:
            return None
        key = _key(obj)
        return await self._kube.find(kind_named(key.kind), key.name, key.namespace)

    async def _resource(self, obj: Object, references: References) -> list[Step]:
        desired = desired_of(parse_spec(obj))
        place = await references.place(obj)
        stored = await self._stored(obj)
        status = {} if stored is None else stored.get("status") or {}
        if not self._url and (reason := moved(status, place)):
            raise BadSpec(reason)
        if refused := unsupported(desired, place.local_cluster):
            raise BadSpec("; ".join(refused))
        applied = applied_there(status, place)
        view = self._clusters.at(place.url, place.key)
        return await steps_or_create(view, place.target, desired, applied, ignored(obj))

    async def _cluster(self, obj: Object) -> list[Step]:
        """Plans a MagnetarCluster."""
        if self._kube is None:
            raise CannotPlan(f"{_key(obj)} can only be planned with Kubernetes: --kube")
        stored = await self._stored(obj)
        metadata = {"uid": "", **(stored or {}).get("metadata", {}), **obj["metadata"]}
        key, own = _key(obj), Settings.from_environment()
        settings = await settings_of(self._kube, key.namespace, key.name, own)
        cluster = cluster_of({**obj, "metadata": metadata}, settings)
        if refused := refusals(cluster):
            raise BadSpec("; ".join(refused))
        observed = await Observer(self._kube, self._clients).observe(cluster)
        status = (stored or {}).get("status") or {}
        recorded = int(status.get("bookies", {}).get("desired", 0))
        now = datetime.datetime.now(datetime.UTC)
        changes = plan(cluster, observed, recorded, now, str(status.get("scaledUp", "")))
        steps = [action.step for action in changes.actions]
        return [
            {
                "action": step.action,
                "target": step.target,
                "text": step.text,
                "losesData": step.loses_data,
                "bytes": step.bytes,
                "topics": step.topics,
            }
            for step in steps
        ]
