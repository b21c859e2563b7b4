"""A thin asynchronous client of the Kubernetes API, over the official package's connection.

Requests run in a pool of named threads (the package blocks), REQUESTS_AT_ONCE at most, each with a
deadline. Answers are plain JSON. What may be asked again is, ATTEMPTS_MAX times with back-off and
jitter, where the server could not be reached or was too busy; all else is raised, typed by what
the caller can do about it.

Writes are server-side applies under one field manager, so that what others own stays theirs. Every
request is counted by verb and resource: the operator's RBAC is held against these counts.
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

from magnetar_operator.api_kinds import Kind, Object, kind_of

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
    """The API server's answer was no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(KubeError):
    """There is no such object (or no such kind)."""


class Conflict(KubeError):
    """It changed, exists already, or is another of the same name: look again."""


class Forbidden(KubeError):
    """The operator's RBAC lacks a verb."""


class Invalid(KubeError):
    """The manifest is refused as it is; asking again changes nothing."""


class Unreachable(KubeError):
    """No answer, or none that counts: ask again later."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply made of the object."""

    object: Object
    changed: bool
    """Whether anything was written."""
    created: bool


class KubeClient:
    """See the module's text. `connect` makes one; `close` ends its threads."""

    def __init__(self, configuration: Any, field_manager: str = FIELD_MANAGER) -> None:
        client: Any = import_module("kubernetes.client")
        configuration.connection_pool_maxsize = REQUESTS_AT_ONCE
        self._api = client.ApiClient(configuration)
        self._host = str(configuration.host)
        self._manager = field_manager
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="kube")
        self.guard: Callable[[], None] = lambda: None
        """Asked before every write; raises where this process may not act (now)."""
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """By verb, API group and resource (`pods`, `topics/status`), as RBAC has them."""

    @classmethod
    def connect(cls, kubeconfig: str | None = None, field_manager: str = FIELD_MANAGER) -> Self:
        """By the pod's own account, else by the named file, $KUBECONFIG or ~/.kube/config.

        Raises Unreachable, saying where it looked.
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
            raise Unreachable(0, "", f"no Kubernetes to talk to: {error}") from error
        return cls(configuration, field_manager)

    async def close(self) -> None:
        """Waits for what is under way."""
        await asyncio.to_thread(self._threads.shutdown)
        self._api.close()

    # -- reading ---------------------------------------------------------------------------------

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Raises NotFound."""
        self._count("get", kind)
        return await self._again("GET", kind.path(namespace, name))

    async def find(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """As `get`; None where it is not there."""
        try:
            return await self.get(kind, name, namespace)
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: Mapping[str, str] | str = ""
    ) -> list[Object]:
        """All of them (of the namespace, of the labels), whole pages at a time."""
        return [one async for one in self.walk(kind, namespace, labels=labels)]

    async def walk(
        self, kind: Kind, namespace: str | None = None, *, labels: Mapping[str, str] | str = ""
    ) -> AsyncIterator[Object]:
        """As `list`, with one page in memory."""
        query: dict[str, str] = {"limit": str(PAGE_OBJECTS)}
        if labels:
            query["labelSelector"] = labels if isinstance(labels, str) else selector(labels)
        while True:
            self._count("list", kind)
            page = await self._again("GET", kind.path(namespace), query)
            for one in page.get("items") or ():
                # Items of a list come without what the list says once.
                yield {"apiVersion": kind.api_version, "kind": kind.kind, **one}
            following = page.get("metadata", {}).get("continue")
            if not following:
                return
            query["continue"] = following

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server knows the kind now."""
        prefix = "/apis/" if kind.group else "/api/"
        try:
            found = await self._again("GET", prefix + kind.api_version)
        except NotFound:
            return False
        return any(one.get("kind") == kind.kind for one in found.get("resources") or ())

    # -- writing ---------------------------------------------------------------------------------

    async def apply(
        self, manifest: Object, *, before: Object | None = None, dry_run: bool = False
    ) -> Applied:
        """Makes the object have what the manifest says (server-side, by force).

        `before` is the object as it was last seen, where the caller has it: without, whether
        anything changed is told from a look at it.
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
        after = await self._again("PATCH", kind.path(namespace, name), query, manifest, _APPLY)
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
        """Makes these fields of the status ours. With `uid` only of that very object."""
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
        return await self._again("PATCH", kind.path(namespace, name, "status"), query, body, _APPLY)

    async def merge(
        self, kind: Kind, namespace: str | None, name: str, body: Mapping[str, Any]
    ) -> Object:
        """A JSON merge patch: for what is taken away (a finalizer), or is nobody's to own."""
        self._count("patch", kind)
        query = {"fieldManager": self._manager}
        return await self._again("PATCH", kind.path(namespace, name), query, body, _MERGE)

    async def scale(self, kind: Kind, namespace: str, name: str, replicas: int) -> None:
        """Through the scale subresource."""
        self._count("patch", kind, "scale")
        await self._again(
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
        """Whether it was there. With `uid` only that very object: raises Conflict for another."""
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
            await self._again("DELETE", kind.path(namespace, name), None, body, _JSON)
        except NotFound:
            return False
        return True

    async def create(self, manifest: Object) -> Object:
        """Raises Conflict where it exists. Tried once."""
        kind = kind_of(manifest)
        self._count("create", kind)
        namespace = manifest["metadata"].get("namespace")
        query = {"fieldManager": self._manager}
        return await self.request("POST", kind.path(namespace), query, manifest, _JSON)

    async def replace(self, manifest: Object) -> Object:
        """The whole object, by the resourceVersion it names; raises Conflict. Tried once."""
        kind = kind_of(manifest)
        metadata = manifest["metadata"]
        self._count("update", kind)
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return await self.request("PUT", path, {"fieldManager": self._manager}, manifest, _JSON)

    # -- the connection --------------------------------------------------------------------------

    async def _again(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> Object:
        """A request that may be repeated: what it asks for is the same the second time."""
        pause_s = BACKOFF_FIRST_S
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self.request(method, path, query, body, content_type)
            except Unreachable:
                if attempt == ATTEMPTS_MAX:
                    raise
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(BACKOFF_MAX_S, pause_s * 3)
        raise AssertionError("unreachable")

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> Object:
        """One request, once; raises KubeError."""
        if method != "GET":
            self.guard()
        loop = asyncio.get_running_loop()
        send = (method, path, query, body, content_type)
        # The thread has its own deadline; the bound here also covers the wait for a thread.
        try:
            async with asyncio.timeout(3 * REQUEST_TIMEOUT_S):
                return await loop.run_in_executor(self._threads, self._send, *send)
        except TimeoutError as error:
            raise Unreachable(0, "Timeout", f"{method} {path} was not answered") from error

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
    """Labels as a query has them."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _version(one: Mapping[str, Any]) -> str:
    return str(one.get("metadata", {}).get("resourceVersion", ""))


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
        status = 422  # an apply whose types are wrong is answered as if the server had failed
    raise _error_class(status)(status, reason, message)


def _error_class(status: int) -> type[KubeError]:
    if status in _BUSY:
        return Unreachable
    by_status: dict[int, type[KubeError]] = {
        400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound,
        409: Conflict, 410: NotFound, 415: Invalid, 422: Invalid,
    }  # fmt: skip
    return by_status.get(status, KubeError)
