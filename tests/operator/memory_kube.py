"""A Kubernetes API in memory, behind the real `KubeClient` and without sockets.

It stores objects as an API server does: versions, generations, uids, finalizers, server-side apply
of one owner of fields, preconditions, pages of a list. No controller runs; a test plays it.
"""

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec
from kubernetes.client import Configuration

from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.kinds import EVENT, Kind, Object, kind_of

HOST = "http://kube"
CREATED = "2026-01-01T00:00:{:02}Z"
T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=KubeClient)
PATCH_APPLY = "application/apply-patch+yaml"

Key = tuple[str, str, str, str]
"""API version, namespace, plural, name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client reads of an answer."""

    status: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the test reads it."""

    method: str
    path: str
    body: Any = None


class Refusal(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message or reason


@dataclass
class MemoryKube:
    """See the module's text. Stands where urllib3's pool of connections is."""

    page_objects: int = 500
    served: set[str] = field(default_factory=set)
    """Kinds that GET of an API version names."""
    objects: dict[Key, Object] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    refuse: Callable[[Asked], Refusal | None] = lambda _: None
    seen: Callable[[Object, bool], None] = lambda _one, _gone: None
    """Called with each change that a watch would report: the object, and whether it was deleted."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._owned: dict[tuple[Key, str], Object] = {}

    def client(self) -> KubeClient:
        """A client of this API; the caller closes it."""
        return self.connect(KubeClient)

    def connect(self, kind: type[ClientT]) -> ClientT:
        """As `client`, for a class of the test's own."""
        configuration: Any = Configuration()
        configuration.host = HOST
        client = kind(configuration)
        client._api.rest_client.pool_manager = self
        return client

    # -- for tests -------------------------------------------------------------------------------

    def put(self, manifest: Object) -> Object:
        """Creates or replaces an object as another client."""
        with self._lock:
            kind, metadata = kind_of(manifest), manifest["metadata"]
            key = (kind.api_version, metadata.get("namespace", ""), kind.plural, metadata["name"])
            return _copied(self._store(key, _copied(manifest)))

    def get(self, kind: Kind, name: str, namespace: str = "ns") -> Object:
        """The object; empty if it does not exist."""
        key = (kind.api_version, namespace if kind.namespaced else "", kind.plural, name)
        return _copied(self.objects.get(key, {}))

    def all_of(self, kind: Kind) -> list[Object]:
        named = sorted(key for key in self.objects if (key[0], key[2]) == _kind_key(kind))
        return [_copied(self.objects[key]) for key in named]

    def events(self, reason: str) -> list[Object]:
        """The Events of a reason, in the order in which they were created."""
        recorded = [event for event in self.all_of(EVENT) if event["reason"] == reason]
        return sorted(recorded, key=lambda one: int(one["metadata"]["uid"].removeprefix("uid-")))

    def remove(self, kind: Kind, name: str, namespace: str = "ns") -> None:
        """Deletes an object as a user does; finalizers delay it."""
        with self._lock:
            self._delete((kind.api_version, namespace, kind.plural, name), {})

    def drop(self, kind: Kind, name: str, namespace: str = "ns") -> None:
        """Removes an object at once, without a watch event."""
        with self._lock:
            del self.objects[kind.api_version, namespace, kind.plural, name]

    @property
    def writes(self) -> list[Asked]:
        return [request for request in self.asked if request.method != "GET"]

    def writes_of(self, kind: Kind) -> list[Asked]:
        return [request for request in self.writes if f"/{kind.plural}" in request.path]

    # -- for the client --------------------------------------------------------------------------

    def request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], **_: Any
    ) -> Answer:
        parts = urlsplit(url)
        given = json.loads(body) if body else None
        received = Asked(method, parts.path, given)
        with self._lock:
            self.asked.append(received)
            try:
                if (refused := self.refuse(received)) is not None:
                    raise refused
                answer = self._answer(received, dict(parse_qsl(parts.query)), headers)
            except Refusal as error:
                status_document = {
                    "kind": "Status",
                    "reason": error.reason,
                    "message": error.message,
                }
                return Answer(error.status, json.dumps(status_document).encode())
            return Answer(200, json.dumps(answer).encode())

    def clear(self) -> None:
        """Closes nothing: there are no connections."""

    def _answer(self, asked: Asked, query: dict[str, str], headers: Mapping[str, str]) -> Object:
        key, subresource = _parsed(asked.path)
        name = key[3]
        match asked.method:
            case "GET" if not key[2]:
                return {"resources": [{"kind": kind} for kind in sorted(self.served)]}
            case "GET" if not name:
                return self._list(key, query)
            case "GET":
                return self._there(key)
            case "POST":
                key = (*key[:3], asked.body["metadata"]["name"])
                if key in self.objects:
                    raise Refusal(409, "AlreadyExists")
                return self._store(key, asked.body)
            case "PUT":
                self._check(key, asked.body)
                return self._store(key, asked.body)
            case "DELETE":
                return self._delete(key, asked.body)
            case "PATCH" if headers["Content-Type"] == PATCH_APPLY:
                return self._apply(key, subresource, asked.body)
            case "PATCH":
                self._check(key, asked.body)
                return self._store(key, _merged(self._there(key), asked.body))
        raise Refusal(405, "MethodNotAllowed")

    def _there(self, key: Key) -> Object:
        if key not in self.objects:
            raise Refusal(404, "NotFound", f"{key[2]} {key[3]!r} not found")
        return _copied(self.objects[key])

    def _check(self, key: Key, body: Object) -> None:
        there, wanted = self._there(key)["metadata"], body.get("metadata", {})
        for name in ("resourceVersion", "uid"):
            if wanted.get(name, there[name]) != there[name]:
                raise Refusal(409, "Conflict", f"{name} is {there[name]}")

    def _list(self, key: Key, query: dict[str, str]) -> Object:
        wanted = dict(pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair)
        found = [
            {name: value for name, value in one.items() if name not in ("apiVersion", "kind")}
            for known, one in sorted(self.objects.items())
            if (known[0], known[2]) == (key[0], key[2])
            and key[1] in ("", known[1])
            and wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]
        start = int(query.get("continue", "0"))
        end = start + min(self.page_objects, int(query["limit"]))
        metadata = {"continue": str(end)} if end < len(found) else {}
        return {"items": _copied(found[start:end]), "metadata": metadata}

    def _apply(self, key: Key, subresource: str, body: Object) -> Object:
        before = self.objects.get(key)
        if subresource == "status":
            self._check(key, body)
            body = {"status": body["status"]}
            if _has_none(body):
                raise Refusal(422, "Invalid", "null in a status")
        wanted = _copied(body)
        wanted.get("metadata", {}).pop("uid", None)
        obj = _without(_copied(before or {}), self._owned.get((key, subresource)), wanted)
        self._owned[key, subresource] = _copied(wanted)
        return self._store(key, _overlaid(obj, wanted))

    def _delete(self, key: Key, body: Object) -> Object:
        stored = self._there(key)
        uid = (body.get("preconditions") or {}).get("uid")
        if uid not in (None, stored["metadata"]["uid"]):
            raise Refusal(409, "Conflict", "another uid")
        stored["metadata"].setdefault("deletionTimestamp", "2026-01-01T01:00:00Z")
        return self._store(key, stored)

    def _store(self, key: Key, obj: Object) -> Object:
        """The stored object, with the fields that the server sets."""
        before, metadata = self.objects.get(key), obj["metadata"]
        number = next(self._numbers)
        for name, value in {
            "uid": f"uid-{number}", "resourceVersion": str(number), "generation": 1,
            "creationTimestamp": CREATED.format(number % 60),
        }.items():  # fmt: skip
            metadata.setdefault(name, before["metadata"][name] if before else value)
        if before is not None:
            same = {**metadata, "resourceVersion": before["metadata"]["resourceVersion"]}
            if {**obj, "metadata": same} == before:
                return _copied(before)
            metadata["resourceVersion"] = str(number)
            if obj.get("spec") != before.get("spec"):
                metadata["generation"] = before["metadata"]["generation"] + 1
        gone = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        if gone:
            self.objects.pop(key, None)
            self._owned = {known: one for known, one in self._owned.items() if known[0] != key}
        else:
            self.objects[key] = _copied(obj)
        self.seen(_copied(obj), gone)
        return _copied(obj)


def _copied(content: T) -> T:
    return cast("T", msgspec.json.decode(msgspec.json.encode(content)))


def _kind_key(kind: Kind) -> tuple[str, str]:
    return kind.api_version, kind.plural


def _parsed(path: str) -> tuple[Key, str]:
    parts = path.strip("/").split("/")[1:]
    depth = 1 if path.startswith("/api/") else 2
    version, rest = "/".join(parts[:depth]), parts[depth:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "", "")[:3]
    return (version, namespace, plural, name), subresource


def _overlaid(obj: Object, wanted: Object) -> Object:
    for name, value in wanted.items():
        if isinstance(value, dict) and isinstance(obj.get(name), dict):
            obj[name] = _overlaid(obj[name], value)
        else:
            obj[name] = value
    return obj


def _without(obj: Object, owned: Object | None, wanted: Object) -> Object:
    """Fields that were applied before and are no longer go."""
    for name, value in (owned or {}).items():
        if name not in wanted:
            obj.pop(name, None)
        elif all(isinstance(item, dict) for item in (value, wanted[name], obj.get(name))):
            obj[name] = _without(obj[name], value, wanted[name])
    return obj


def _merged(obj: Object, patch: Object) -> Object:
    for name, value in patch.items():
        if value is None:
            obj.pop(name, None)
        elif isinstance(value, dict):
            known = obj.get(name)
            obj[name] = _merged(known if isinstance(known, dict) else {}, value)
        else:
            obj[name] = value
    return obj


def _has_none(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_none, value.values()))
    return value is None or (isinstance(value, list) and any(map(_has_none, value)))
