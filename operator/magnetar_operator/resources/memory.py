"""What the reconcilers remember between looks: nothing that a restart may not forget.

The status that was written last (the watch may be behind our own writes), how often a look failed,
who waits for what, and which resource looks after a target where several claim it: the oldest.
Memory is by the number of resources; what is gone is forgotten from time to time.
"""

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.resources.placing import Siblings
from magnetar_operator.resources.targets import Target, target_token
from magnetar_operator.work import Key

PAUSE_FIRST_S: Final = 2.0
PAUSE_MAX_S: Final = 60.0
OUTAGE_PAUSE_MAX_S: Final = 10.0
"""While a cluster cannot be reached: its client asks it every few seconds, whoever calls."""
FORGET_EVERY_LOOKS: Final = 10_000


@dataclass(slots=True)
class _Written:
    version: int
    uid: str
    status: Mapping[str, Any]


class Memory:
    """See the module's text."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings
        self._written: dict[Key, _Written] = {}
        self._failures: defaultdict[Key, int] = defaultdict(int)
        self._waiting: defaultdict[str, set[Key]] = defaultdict(set)
        self._holders: dict[str, Key] = {}
        self._looks = 0

    # -- statuses --------------------------------------------------------------------------------

    def status(self, key: Key, one: Object) -> Mapping[str, Any]:
        """The newest that is known."""
        there: Mapping[str, Any] = one.get("status") or {}
        written = self._written.get(key)
        if written is None or written.uid != one["metadata"].get("uid"):
            return there
        if written.version < version_of(one):
            del self._written[key]
            return there
        return written.status

    def wrote(self, key: Key, after: Object) -> None:
        """The object as the API server gave it back."""
        metadata = after["metadata"]
        self._written[key] = _Written(
            version_of(after), metadata.get("uid", ""), after.get("status") or {}
        )

    # -- pauses ----------------------------------------------------------------------------------

    def pause_s(self, key: Key, most_s: float = PAUSE_MAX_S) -> float:
        """Until the next attempt, longer each time, with jitter."""
        self._failures[key] += 1
        pause = PAUSE_FIRST_S * 2.0 ** min(self._failures[key] - 1, 16)
        return min(most_s, pause) * random.uniform(0.75, 1.0)

    def went_well(self, key: Key) -> None:
        self._failures.pop(key, None)

    # -- waiting ---------------------------------------------------------------------------------

    def wait(self, token: str, key: Key) -> None:
        """Until `wake(token)`; who waits also looks now and then by itself."""
        if token:
            self._waiting[token].add(key)

    def wake(self, *tokens: str) -> None:
        """What they wait for is there, or gone."""
        for token in tokens:
            for key in self._waiting.pop(token, ()):
                self._failures.pop(key, None)
                self._siblings.look(key)

    def wait_for_cluster(self, url: str, key: Key) -> None:
        """Until `answered`."""
        self.wait(f"answer of {url}", key)

    def answered(self, url: str, key: Key) -> None:
        """A look of this one went through: who waits for the cluster may look at once."""
        token = f"answer of {url}"
        if token in self._waiting:
            self._waiting[token].discard(key)
            self.wake(token)

    # -- claims ----------------------------------------------------------------------------------

    def elder(self, key: Key, one: Object, token: str) -> Key | None:
        """Which other resource looks after the target; None: this one does."""
        holder = self._holders.get(token)
        if holder is not None and holder != key:
            other = self._siblings.latest(holder)
            same = other is not None and _claims(other, token)
            if other is not None and same and age(other) < age(one):
                self.wait(token, key)
                return holder
            if same:
                self._siblings.look(holder)  # its status is to say soon that it is a duplicate
        self._holders[token] = key
        return None

    def let_go(self, key: Key, token: str) -> None:
        """It looks after the target no longer: others may."""
        if self._holders.get(token) == key:
            del self._holders[token]
        self.wake(token)

    def forget_gone(self) -> None:
        """Called at each look; does something now and then."""
        self._looks += 1
        if self._looks % FORGET_EVERY_LOOKS:
            return
        latest = self._siblings.latest
        for known in (self._written, self._failures):
            for key in [key for key in known if latest(key) is None]:
                del known[key]
        for token in [token for token, key in self._holders.items() if latest(key) is None]:
            del self._holders[token]
        for token, keys in list(self._waiting.items()):
            keys -= {key for key in keys if latest(key) is None}
            if not keys:
                del self._waiting[token]


def version_of(one: Object) -> int:
    """Of one object they are ordered; 0 where it is none."""
    text = str(one["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


def age(one: Object) -> tuple[str, str, str]:
    metadata = one["metadata"]
    return (
        str(metadata.get("creationTimestamp", "")),
        str(metadata.get("namespace", "")),
        str(metadata.get("name", "")),
    )


def _claims(one: Object, token: str) -> bool:
    """Whether its status says that it is about this target still, or it has none yet."""
    status = one.get("status") or {}
    if not status.get("resolvedName"):
        return True

    target = Target.parse(one["kind"], status["resolvedName"])
    return target_token(status.get("adminUrl", ""), target) == token
