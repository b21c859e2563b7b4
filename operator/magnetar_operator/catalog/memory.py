"""The state that the reconciler of resources keeps between reconciles; a restart may lose it.

It has the status that was written last (the watch may be behind our own writes), the number of
failures of each reconcile, the resources that wait for others, and the owner of each target: of
several resources that claim a target, the oldest. Memory is bounded by the number of resources;
deleted ones are dropped from time to time.
"""

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.backoff import backoff_s
from magnetar_operator.admin.target import Target, target_token
from magnetar_operator.catalog.references import Siblings
from magnetar_operator.engine.queue import ObjectKey
from magnetar_operator.kube.kinds import Object

PAUSE_FIRST_S: Final = 2.0
PAUSE_MAX_S: Final = 60.0
OUTAGE_PAUSE_MAX_S: Final = 10.0
"""The longest pause while a cluster does not answer. It may be short: the cluster's client sends a
request only every few seconds, however many resources retry."""
FORGET_EVERY_RECONCILES: Final = 10_000


@dataclass(slots=True)
class _Written:
    version: int
    uid: str
    status: Mapping[str, Any]


class Memory:
    """Statuses, failures, waiting resources and the owners of targets, in memory."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings
        self._written: dict[ObjectKey, _Written] = {}
        self._failures: defaultdict[ObjectKey, int] = defaultdict(int)
        self._waiting: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._owners: dict[str, ObjectKey] = {}
        self._reconciles = 0

    def status(self, key: ObjectKey, obj: Object) -> Mapping[str, Any]:
        """The newer of the watched status and the one that was written last."""
        watched: Mapping[str, Any] = obj.get("status") or {}
        written = self._written.get(key)
        if written is None or written.uid != obj["metadata"].get("uid"):
            return watched
        if written.version < version_of(obj):
            del self._written[key]
            return watched
        return written.status

    def wrote(self, key: ObjectKey, after: Object) -> None:
        """Remembers the status of the object as the API server stored it."""
        metadata = after["metadata"]
        self._written[key] = _Written(
            version_of(after), metadata.get("uid", ""), after.get("status") or {}
        )

    def pause_s(self, key: ObjectKey, most_s: float = PAUSE_MAX_S) -> float:
        """Records a failure; returns the pause before the next attempt, at most `most_s`."""
        self._failures[key] += 1
        return backoff_s(self._failures[key], PAUSE_FIRST_S, most_s, random)

    def succeeded(self, key: ObjectKey) -> None:
        """Records a success: the next pause is the first again."""
        self._failures.pop(key, None)

    def wait(self, token: str, key: ObjectKey) -> None:
        """Enqueues the resource on `wake(token)`; it is retried after a pause in any case."""
        if token:
            self._waiting[token].add(key)

    def wake(self, *tokens: str) -> None:
        """Enqueues the resources that wait for any of the tokens."""
        for token in tokens:
            for key in self._waiting.pop(token, ()):
                self._failures.pop(key, None)
                self._siblings.enqueue(key)

    def wait_for_cluster(self, url: str, key: ObjectKey) -> None:
        """Enqueues the resource on `answered`."""
        self.wait(f"answer of {url}", key)

    def answered(self, url: str, key: ObjectKey) -> None:
        """Enqueues the resources that wait for the cluster, which has answered `key`."""
        token = f"answer of {url}"
        if token in self._waiting:
            self._waiting[token].discard(key)
            self.wake(token)

    def elder(self, key: ObjectKey, obj: Object, token: str) -> ObjectKey | None:
        """The older resource that owns the target; None: this resource owns it from now on."""
        owner = self._owners.get(token)
        if owner is not None and owner != key:
            other = self._siblings.latest(owner)
            claims = other is not None and _claims(other, token)
            if other is not None and claims and age(other) < age(obj):
                self.wait(token, key)
                return owner
            if claims:
                self._siblings.enqueue(owner)  # its status must soon show that it is a duplicate
        self._owners[token] = key
        return None

    def release(self, key: ObjectKey, token: str) -> None:
        """Releases the target: another resource may own it."""
        if self._owners.get(token) == key:
            del self._owners[token]
        self.wake(token)

    def forget_deleted(self) -> None:
        """Drops deleted resources, once per FORGET_EVERY_RECONCILES calls."""
        self._reconciles += 1
        if self._reconciles % FORGET_EVERY_RECONCILES:
            return
        latest = self._siblings.latest
        for by_key in (self._written, self._failures):
            for key in [key for key in by_key if latest(key) is None]:
                del by_key[key]
        for token in [token for token, key in self._owners.items() if latest(key) is None]:
            del self._owners[token]
        for token, keys in list(self._waiting.items()):
            keys -= {key for key in keys if latest(key) is None}
            if not keys:
                del self._waiting[token]


def version_of(obj: Object) -> int:
    """The resourceVersion as a number, which orders the states of an object; 0: unknown."""
    text = str(obj["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


def age(obj: Object) -> tuple[str, str, str]:
    """Orders resources from the oldest to the youngest."""
    metadata = obj["metadata"]
    return (
        str(metadata.get("creationTimestamp", "")),
        str(metadata.get("namespace", "")),
        str(metadata.get("name", "")),
    )


def _claims(obj: Object, token: str) -> bool:
    """Whether the object's status records this target, or none yet."""
    status = obj.get("status") or {}
    if not status.get("resolvedName"):
        return True
    target = Target.parse(obj["kind"], status["resolvedName"])
    return target_token(status.get("adminUrl", ""), target) == token
