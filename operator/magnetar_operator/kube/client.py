"""An asynchronous client of the Kubernetes API, over the connections of the official package.

The package blocks, so requests run in a pool of named threads, at most REQUESTS_AT_ONCE, each with
a deadline. Answers are plain JSON. An idempotent request is attempted up to ATTEMPTS_MAX times with
back-off and jitter if the server does not answer or is too busy. Every other failure raises an
exception, whose type determines what the caller can do.

Writes are server-side applies under one field manager, so fields of other managers stay untouched.
Every request is counted by verb and resource: tests compare the operator's RBAC with these counts.
"""

import asyncio
import json
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Self
from urllib.parse import urlencode

import msgspec
import urllib3

from magnetar.core.backoff import Backoff
from magnetar_operator.kube.kinds import Kind, Object, kind_of

FIELD_MANAGER: Final = "magnetar-operator"
REQUESTS_AT_ONCE: Final = 8
REQUEST_TIMEOUT_S: Final = 30.0
ATTEMPTS_MAX: Final = 4
BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 5.0
PAGE_OBJECTS: Final = 500
MESSAGE_CHARACTERS_MAX: Final = 2_000

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_BUSY: Final = frozenset({429, 500, 502, 503, 504})


class KubeError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(KubeError):
    """The object, or its kind, does not exist."""


class Conflict(KubeError):
    """The object changed, exists already, or a newer one has its name: read it again."""


class Forbidden(KubeError):
    """The operator's RBAC lacks a verb."""


class Invalid(KubeError):
    """The API server refuses the manifest; a retry does not help."""


class Unreachable(KubeError):
    """The API server did not answer, or was too busy: retry later."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an apply."""

    object: Object
    changed: bool
    """Whether anything was written."""
    created: bool


class KubeClient:
    """A client of the Kubernetes API. `connect` creates it, `close` ends its threads."""

    def __init__(self, configuration: Any, field_manager: str = FIELD_MANAGER) -> None:
        client: Any = import_module("kubernetes.client")
        configuration.connection_pool_maxsize = REQUESTS_AT_ONCE
        self._api = client.ApiClient(configuration)
        self._host = str(configuration.host)
        self._manager = field_manager
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="kube")
        self.guard: Callable[[], None] = lambda: None
        """Called before every write; raises if this process may not write now."""
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """Requests by verb, API group and resource (`pods`, `topics/status`), as RBAC names them.
        """

    @classmethod
    def connect(cls, kubeconfig: str | None = None, field_manager: str = FIELD_MANAGER) -> Self:
        """Connects by `kubeconfig`, else by the pod's account, $KUBECONFIG or ~/.kube/config.

        Raises Unreachable, whose text names the missing configuration.
        """
        config: Any = import_module("kubernetes.config")
        configuration: Any = import_module("kubernetes.client").Configuration()
        try:
            if kubeconfig is None:
                try:
                    config.load_incluster_config(client_configuration=configuration)
                except config.ConfigException:
                    config.load_kube_config(client_configuration=configuration)
            else:
                config.load_kube_config(kubeconfig, client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise Unreachable(0, "", f"no Kubernetes to connect to: {error}") from error
        return cls(configuration, field_manager)

    async def close(self) -> None:
        """Waits for running requests and closes the connections."""
        await asyncio.to_thread(self._threads.shutdown)
        self._api.close()

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Reads an object. Raises NotFound."""
        self._count("get", kind)
        return await self._retry("GET", kind.path(namespace, name))

    async def find(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Reads an object; None if it does not exist."""
        try:
            return await self.get(kind, name, namespace)
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: Mapping[str, str] | str = ""
    ) -> list[Object]:
        """Lists all objects of the kind (in the namespace, with the labels)."""
        return [obj async for obj in self.walk(kind, namespace, labels=labels)]

    async def walk(
        self, kind: Kind, namespace: str | None = None, *, labels: Mapping[str, str] | str = ""
    ) -> AsyncIterator[Object]:
        """Iterates over all objects, with one page in memory."""
        query: dict[str, str] = {"limit": str(PAGE_OBJECTS)}
        if labels:
            query["labelSelector"] = labels if isinstance(labels, str) else selector(labels)
        while True:
            self._count("list", kind)
            page = await self._retry("GET", kind.path(namespace), query)
            for obj in page.get("items") or ():
                # Only the list has kind and apiVersion; its items lack them.
                yield {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server serves the kind now."""
        prefix = "/apis/" if kind.group else "/api/"
        try:
            document = await self._retry("GET", prefix + kind.api_version)
        except NotFound:
            return False
        resources = document.get("resources") or ()
        return any(resource.get("kind") == kind.kind for resource in resources)

    async def apply(
        self, manifest: Object, *, before: Object | None = None, dry_run: bool = False
    ) -> Applied:
        """Applies the manifest (server-side apply, with force).

        `before` is the object as the caller last read it. Without it, the client reads the object
        first, to tell whether the apply changes anything.
        """
        kind = kind_of(manifest)
        metadata = manifest["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace")
        if before is None:
            before = await self.find(kind, name, namespace)
        if before is None:
            self._count("create", kind)
        query = {"fieldManager": self._manager, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        self._count("patch", kind)
        after = await self._retry("PATCH", kind.path(namespace, name), query, manifest, _APPLY)
        changed = before is None or _version(before) != _version(after)
        return Applied(after, changed, before is None)

    async def patch_status(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        status: Mapping[str, Any],
        *,
        uid: str = "",
        manager: str = "",
    ) -> Object:
        """Applies a status. With `uid`, only to that very object."""
        metadata: Object = {"name": name, "namespace": namespace}
        if uid:
            metadata["uid"] = uid
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": metadata,
            "status": status,
        }
        self._count("patch", kind, "status")
        query = {"fieldManager": manager or self._manager, "force": "true"}
        return await self._retry("PATCH", kind.path(namespace, name, "status"), query, body, _APPLY)

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, body: Mapping[str, Any]
    ) -> Object:
        """Sends a JSON merge patch: removes fields (a finalizer) or writes unowned fields."""
        self._count("patch", kind)
        query = {"fieldManager": self._manager}
        return await self._retry("PATCH", kind.path(namespace, name), query, body, _MERGE)

    async def scale(self, kind: Kind, namespace: str, name: str, replicas: int) -> None:
        """Sets the replicas through the scale subresource."""
        self._count("patch", kind, "scale")
        await self._retry(
            "PATCH",
            kind.path(namespace, name, "scale"),
            {"fieldManager": self._manager},
            {"spec": {"replicas": replicas}},
            _MERGE,
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        grace_period_s: int | None = None,
    ) -> bool:
        """Deletes an object; False if it did not exist.

        With `uid`, it deletes only that very object, and raises Conflict for a newer one.
        """
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            body["gracePeriodSeconds"] = grace_period_s
        self._count("delete", kind)
        try:
            await self._retry("DELETE", kind.path(namespace, name), None, body, _JSON)
        except NotFound:
            return False
        return True

    async def create(self, manifest: Object) -> Object:
        """Creates an object, without retries. Raises Conflict if it exists."""
        kind = kind_of(manifest)
        self._count("create", kind)
        namespace = manifest["metadata"].get("namespace")
        query = {"fieldManager": self._manager}
        return await self.request("POST", kind.path(namespace), query, manifest, _JSON)

    async def replace(self, manifest: Object) -> Object:
        """Replaces the version in the manifest, without retries. Raises Conflict if it changed."""
        kind = kind_of(manifest)
        metadata = manifest["metadata"]
        self._count("update", kind)
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self.request("PUT", path, {"fieldManager": self._manager}, manifest, _JSON)

    async def _retry(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> Object:
        """Sends an idempotent request, with retries."""
        backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S, random)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self.request(method, path, query, body, content_type)
            except Unreachable:
                if attempt == ATTEMPTS_MAX:
                    raise
            await asyncio.sleep(backoff.failed_s())
        raise AssertionError("unreachable")

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> Object:
        """Sends a request once. Raises KubeError."""
        if method != "GET":
            self.guard()
        loop = asyncio.get_running_loop()
        send = (method, path, query, body, content_type)
        # The thread has its own deadline; this one includes the wait for a free thread.
        try:
            async with asyncio.timeout(3 * REQUEST_TIMEOUT_S):
                return await loop.run_in_executor(self._threads, self._send, *send)
        except TimeoutError as error:
            raise Unreachable(0, "Timeout", f"{method} {path} got no answer") from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> Object:
        headers = {"Accept": _JSON, **self._api.default_headers}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body).encode()
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = self._api.rest_client.pool_manager.request(
                method,
                url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(total=REQUEST_TIMEOUT_S),
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, ssl.SSLError, OSError) as error:
            raise Unreachable(0, "NoAnswer", f"{method} {path}: {error}") from error
        return _read(f"{method} {path}", answer.status, answer.data)

    def _count(self, verb: str, kind: Kind, subresource: str = "") -> None:
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        self.requests[verb, kind.group, resource] += 1


def selector(labels: Mapping[str, str]) -> str:
    """A label selector that requires all of the labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _version(obj: Mapping[str, Any]) -> str:
    return str(obj.get("metadata", {}).get("resourceVersion", ""))


def _read(what: str, status: int, data: bytes) -> Object:
    try:
        content = msgspec.json.decode(data) if data else {}
    except msgspec.DecodeError:
        content = {"message": data[:MESSAGE_CHARACTERS_MAX].decode(errors="replace")}
    if 200 <= status < 300 and isinstance(content, dict):
        return content
    fields = content if isinstance(content, dict) else {}
    reason = str(fields.get("reason", ""))
    message = f"{what}: {fields.get('message', '')}"[:MESSAGE_CHARACTERS_MAX]
    if status == 500 and "typed patch object" in message:
        status = 422  # the API server reports wrong types in an apply as its own failure
    raise _error_class(status)(status, reason, message)


def _error_class(status: int) -> type[KubeError]:
    if status in _BUSY:
        return Unreachable
    by_status: dict[int, type[KubeError]] = {
        400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound,
        409: Conflict, 410: NotFound, 415: Invalid, 422: Invalid,
    }  # fmt: skip
    return by_status.get(status, KubeError)
