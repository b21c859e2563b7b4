"""An operator for resources, as a process would run it, over a real API server and real brokers.

It runs in a thread with a loop of its own; tests use kubectl and the admin REST, as people do.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from tests.support.kube import Tool

from magnetar_operator import main
from magnetar_operator.engine.context import Context
from magnetar_operator.kube.kinds import API_VERSION
from magnetar_operator.settings import Settings

PARTS: Final = ("magnetar_operator.catalog.reconciler",)
RESYNC_S: Final = 1.0
START_S: Final = 60.0
WAIT_S: Final = 60.0
ANSWER_S: Final = 30.0
POLL_S: Final = 0.05
PATCHED_AT_ONCE: Final = 50


@dataclass(slots=True)
class Operator:
    """A running one."""

    context: Context
    stop: Callable[[], None]


@contextmanager
def operator(
    *namespaces: str, resync_s: float = RESYNC_S, parts: tuple[str, ...] = PARTS
) -> Iterator[Operator]:
    """Watches these namespaces; its lease is in the first."""
    started, ended = threading.Event(), threading.Event()
    known: dict[str, Any] = {}

    async def whole() -> None:
        stop = asyncio.Event()
        known["loop"], known["stop"] = asyncio.get_running_loop(), stop

        def ready(context: Context, _: int) -> None:
            known["context"] = context
            started.set()

        settings = Settings(
            namespaces=namespaces,
            lease_namespace=namespaces[0],
            identity="test",
            host="127.0.0.1",
            port=0,
            resync_s=resync_s,
        )
        await main.run(settings, parts=parts, stop=stop, on_ready=ready)

    def thread() -> None:
        try:
            asyncio.run(whole())
        except BaseException as error:  # noqa: BLE001  it is raised by the test
            known["error"] = error
        finally:
            ended.set()
            started.set()

    running = threading.Thread(target=thread, name="operator", daemon=True)
    running.start()
    assert started.wait(START_S), "the operator did not start"

    def stop() -> None:
        if not ended.is_set():
            known["loop"].call_soon_threadsafe(known["stop"].set)
        assert ended.wait(START_S), "the operator did not stop"

    try:
        if "error" in known:
            raise known["error"]
        yield Operator(known["context"], stop)
    finally:
        stop()
    if "error" in known:
        raise known["error"]


def manifest(kind: str, name: str, spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """`ignore_drift="retention"` is the annotation magnetar.io/ignore-drift."""
    metadata: dict[str, Any] = {"name": name}
    if annotations:
        metadata["annotations"] = {
            f"magnetar.io/{key.replace('_', '-')}": value for key, value in annotations.items()
        }
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def until(what: str, holds: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """What `holds` gives once it is true."""
    deadline = time.monotonic() + timeout_s
    while True:
        outcome = holds()
        if outcome:
            return outcome
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(POLL_S)


@dataclass(slots=True)
class Live:
    """One Kubernetes namespace and one cluster."""

    kubectl: Tool
    url: str
    rest: httpx.Client = field(init=False)
    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """A client of the operator's own, for tests that need it."""

    def __post_init__(self) -> None:
        self.rest = httpx.Client(base_url=f"{self.url}/admin/v2", timeout=ANSWER_S, trust_env=False)

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        self.rest.close()
        let_all_go(self.kubectl)

    def apply(self, kind: str, name: str, spec: dict[str, Any], **annotations: str) -> None:
        """Applies a resource, in this cluster unless the spec names another."""
        placed = {"clusterRef", "adminUrl", "namespaceRef", "topicRef"} & {*spec}
        given = spec if placed else {"adminUrl": self.url, **spec}
        self.kubectl.apply(manifest(kind, name, given, **annotations))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """The object; empty if it does not exist."""
        out = self.kubectl("get", f"{kind}.magnetar.io", name, "-o", "json", "--ignore-not-found")
        document: dict[str, Any] = json.loads(out) if out else {}
        return document

    def status(self, kind: str, name: str) -> dict[str, Any]:
        return dict(self.get(kind, name).get("status") or {})

    def condition(self, kind: str, name: str, type_: str = "Ready") -> dict[str, Any]:
        obj = self.status(kind, name).get("conditions") or ()
        return next((item for item in obj if item["type"] == type_), {})

    def until(
        self, kind: str, name: str, reason: str, type_: str = "Ready", timeout_s: float = WAIT_S
    ) -> dict[str, Any]:
        """Waits for the reason of a condition of the newest generation; gives the condition."""

        def holds() -> dict[str, Any]:
            obj = self.get(kind, name)
            generation = obj.get("metadata", {}).get("generation")
            for condition in (obj.get("status") or {}).get("conditions") or ():
                if condition["type"] == type_ and condition["reason"] == reason:
                    return condition if condition["observedGeneration"] == generation else {}
            return {}

        outcome: dict[str, Any] = until(f"{kind} {name}: {type_} {reason}", holds, timeout_s)
        return outcome

    def ready(self, kind: str, name: str) -> dict[str, Any]:
        """Waits until it is; gives the status."""
        self.until(kind, name, "AsSpecified")
        return self.status(kind, name)

    def annotate(self, kind: str, name: str, *annotations: str) -> None:
        self.kubectl("annotate", f"{kind}.magnetar.io/{name}", "--overwrite", *annotations)

    def delete(self, kind: str, name: str, *, wait: bool = True) -> None:
        path = f"{kind}.magnetar.io/{name}"
        waits = (f"--wait={str(wait).lower()}", f"--timeout={WAIT_S:.0f}s")
        self.kubectl("delete", path, *waits, timeout_s=WAIT_S + 10)

    def gone(self, kind: str, name: str) -> None:
        """Waits until a deleted resource has disappeared."""
        path = f"{kind}.magnetar.io/{name}"
        waits = ("--for=delete", f"--timeout={WAIT_S:.0f}s")
        self.kubectl("wait", *waits, path, timeout_s=WAIT_S + 10)

    def events(self, reason: str, name: str) -> list[str]:
        """The Events of a resource."""
        listed = self.kubectl.json("get", "events.events.k8s.io")["items"]
        return [
            obj["note"]
            for obj in listed
            if obj["reason"] == reason and obj["regarding"]["name"] == name
        ]

    def event(self, reason: str, name: str) -> str:
        """Waits for one."""
        return str(until(f"event {reason} of {name}", lambda: self.events(reason, name))[0])

    def say(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request that must succeed; returns the answer."""
        answer = self.rest.request(method, path, json=body)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def has(self, path: str) -> bool:
        return self.rest.get(path).status_code == 200


def let_all_go(kubectl: Tool) -> None:
    """Takes the finalizers off, so that the Kubernetes namespace can end without an operator."""
    names = kubectl("get", "magnetar", "-o", "name").split()
    patch = ("--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    for at in range(0, len(names), PATCHED_AT_ONCE):
        kubectl("patch", *names[at : at + PATCHED_AT_ONCE], *patch)
