"""`magnetar plan`: what manifests would change if they were applied now. Reads, never writes.

Each document is compared with the running cluster by the planners that the operator acts by, and
what the clusters foresee is added (`effects`). What a manifest refers to is looked for among the
manifests first, then in Kubernetes. A resource that Kubernetes has already brings along what was
set from it before, so that what was taken out of the manifest is shown as removed.

Without Kubernetes (`url`) the manifests are compared with one cluster; what was set before is then
not known, and MagnetarClusters cannot be planned.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from magnetar_operator.api_kinds import CLUSTER, Object
from magnetar_operator.kube import KubeClient
from magnetar_operator.models.base import API_VERSION
from magnetar_operator.models.kinds import BY_KIND
from magnetar_operator.resources.annotations import applied_there, ignored, moved
from magnetar_operator.resources.cluster_view import Clusters
from magnetar_operator.resources.desired import desired_of, unsupported
from magnetar_operator.resources.effects import count, human_bytes
from magnetar_operator.resources.placing import Placing, kind_named
from magnetar_operator.resources.plan import Verb
from magnetar_operator.resources.planned import ordered, steps_or_create
from magnetar_operator.resources.targets import ORDER, BadSpec, NotYet, parse_spec
from magnetar_operator.work import Key

NOTHING, FAILED, CHANGES, LOSES_DATA = 0, 1, 2, 3
"""Exit codes."""
NAMESPACE_DEFAULT: Final = "default"
DOCUMENTS_MAX: Final = 10_000

Step = dict[str, Any]


class CannotPlan(Exception):
    """The text says which document, and why."""


@dataclass(slots=True)
class Findings:
    """All steps, data first, and how many documents there were."""

    steps: list[Step] = field(default_factory=list)
    resources: int = 0

    @property
    def code(self) -> int:
        if any(one["losesData"] for one in self.steps):
            return LOSES_DATA
        if any(one["action"] == Verb.REFUSE.value for one in self.steps):
            return FAILED
        return CHANGES if self.steps else NOTHING

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "resources": self.resources,
            "exitCode": self.code,
            "deletes": {
                "bytes": sum(one["bytes"] for one in self.steps if one["losesData"]),
                "topics": sum(one["topics"] for one in self.steps if one["losesData"]),
            },
            "steps": self.steps,
        }

    def lines(self) -> Iterable[str]:
        """For people."""
        groups = (
            ("Deletes data:", "!", [one for one in self.steps if one["losesData"]]),
            ("Refused, and not done:", "x", [one for one in self.steps if _refused(one)]),
            ("Changes:", "", [o for o in self.steps if not o["losesData"] and not _refused(o)]),
        )
        for title, mark, members in groups:
            if members:
                yield title
            for one in members:
                yield f"  {mark or _MARKS.get(one['action'], '~')} {one['target']}: {one['text']}"
        yield self.summary()

    def summary(self) -> str:
        """The last line."""
        resources = count(self.resources, "resource")
        if not self.steps:
            return f"Nothing to do: {resources} as specified."
        changes = sum(not _refused(one) for one in self.steps)
        text = f"Plan: {count(changes, 'change')} for {resources}"
        if refused := len(self.steps) - changes:
            text += f", {refused} refused"
        if self.code == LOSES_DATA:
            size = sum(one["bytes"] for one in self.steps)
            text += f"; deletes {human_bytes(size)}" if size else "; deletes data"
        return f"{text}."


_MARKS: Final[Mapping[str, str]] = {"create": "+", "remove": "-", "delete": "-"}


def _refused(one: Step) -> bool:
    return bool(one["action"] == Verb.REFUSE.value)


def read_documents(paths: Iterable[str], stdin: str = "") -> list[Object]:
    """Of files and folders (*.yaml, *.yml, *.json), `-` being `stdin`; raises CannotPlan."""
    found: list[Object] = []
    for path in paths:
        files = [Path(path)] if path != "-" else []
        if files and files[0].is_dir():
            files = sorted(p for p in files[0].iterdir() if p.suffix in (".yaml", ".yml", ".json"))
        try:
            texts = [(str(file), file.read_text()) for file in files] or [("-", stdin)]
        except (OSError, UnicodeDecodeError) as error:
            raise CannotPlan(f"{path}: {error}") from error
        for name, text in texts:
            found += _parsed(name, text)
    if len(found) > DOCUMENTS_MAX:
        raise CannotPlan(f"{len(found)} documents are more than {DOCUMENTS_MAX}")
    return found


def _parsed(name: str, text: str) -> list[Object]:
    """The documents of ours; others are left out."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise CannotPlan(f"{name}: {error}") from error
    flat: list[Any] = []
    for one in documents:
        is_list = isinstance(one, dict) and one.get("kind") == "List"
        flat += one.get("items") or [] if is_list else [one]
    found = []
    for one in flat:
        if not isinstance(one, dict) or one.get("apiVersion") != API_VERSION:
            continue
        kind, metadata = one.get("kind"), one.get("metadata")
        if kind not in BY_KIND or not isinstance(metadata, dict) or not metadata.get("name"):
            raise CannotPlan(f"{name}: a document of {API_VERSION} without a known kind and a name")
        found.append(one)
    return found


class _Files:
    """The manifests as siblings of each other (`placing.Siblings`)."""

    def __init__(self, documents: Iterable[Object]) -> None:
        self._known = {_key(one): one for one in documents}

    def latest(self, key: Key) -> Object | None:
        return self._known.get(key)

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]:
        return [
            one
            for key, one in self._known.items()
            if key.kind == kind and namespace in (None, key.namespace)
        ]

    def look(self, key: Key, after_s: float = 0.0) -> None:
        """Nobody waits here."""


def _key(one: Object) -> Key:
    return Key(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"])


class PlanFiles:
    """See the module's text. `close` it."""

    def __init__(self, kube: KubeClient | None, url: str = "", namespace: str = "") -> None:
        self._kube = kube
        self._url = url
        self._namespace = namespace or NAMESPACE_DEFAULT
        self._clusters = Clusters()

    async def close(self) -> None:
        await self._clusters.close()

    async def run(self, documents: Iterable[Object]) -> Findings:
        """Raises CannotPlan, and what the clients raise where nobody answers."""
        placed = [self._here(one) for one in documents]
        placing = Placing(self._kube, _Files(placed))
        order = (CLUSTER.kind, *ORDER)
        found = Findings()
        for one in sorted(
            (one for one in placed if one["kind"] in order),
            key=lambda one: order.index(one["kind"]),
        ):
            found.resources += 1
            try:
                if one["kind"] == CLUSTER.kind:
                    found.steps += await self._cluster(one)
                else:
                    found.steps += await self._resource(one, placing)
            except (BadSpec, NotYet, msgspec.ValidationError) as error:
                raise CannotPlan(f"{_key(one)}: {error}") from error
        found.steps = ordered(found.steps)
        return found

    def _here(self, one: Object) -> Object:
        """With its Kubernetes namespace, and the cluster that was named for all."""
        metadata = {"namespace": self._namespace, **one["metadata"]}
        spec = dict(one.get("spec") or {})
        if self._url:
            spec.pop("clusterRef", None)
            spec["adminUrl"] = self._url
        return {**one, "metadata": metadata, "spec": spec}

    async def _there(self, one: Object) -> Object | None:
        if self._kube is None:
            return None
        key = _key(one)
        return await self._kube.find(kind_named(key.kind), key.name, key.namespace)

    async def _resource(self, one: Object, placing: Placing) -> list[Step]:
        desired = desired_of(parse_spec(one))
        place = await placing.place(one)
        there = await self._there(one)
        status = {} if there is None else there.get("status") or {}
        if not self._url and (why := moved(status, place)):
            raise BadSpec(why)
        if refused := unsupported(desired, place.local_cluster):
            raise BadSpec("; ".join(refused))
        applied = applied_there(status, place)
        view = self._clusters.at(place.url)
        return await steps_or_create(view, place.target, desired, applied, ignored(one))

    async def _cluster(self, one: Object) -> list[Step]:
        """By the planner of MagnetarClusters."""
        from magnetar_operator.cluster.assumed import settings_of
        from magnetar_operator.cluster.handlers import cluster_of
        from magnetar_operator.cluster.observe import Admins, Observer
        from magnetar_operator.cluster.plan import plan
        from magnetar_operator.cluster.refusals import refusals
        from magnetar_operator.settings import Settings

        if self._kube is None:
            raise CannotPlan(f"{_key(one)}: a MagnetarCluster is planned with Kubernetes: --kube")
        there = await self._there(one)
        known = {"uid": "", **(there or {}).get("metadata", {}), **one["metadata"]}
        key, given = _key(one), Settings.from_environment()
        settings = await settings_of(self._kube, key.namespace, key.name, given)
        cluster = cluster_of({**one, "metadata": known}, settings)
        if refused := refusals(cluster):
            raise BadSpec("; ".join(refused))
        admins = Admins()
        try:
            observed = await Observer(self._kube, admins).observe(cluster)
        finally:
            await admins.close()
        status = (there or {}).get("status") or {}
        remembered = int(status.get("bookies", {}).get("desired", 0))
        now = datetime.datetime.now(datetime.UTC)
        made = plan(cluster, observed, remembered, now, str(status.get("scaledUp", "")))
        steps = [action.step for action in made.actions]
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
