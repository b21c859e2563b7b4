"""The routes of the registry's policies: one per verb and level; the last segment is the policy.

Two policies of a level never share both path and verb, so the segment that a route matched
identifies the policy (`to_get`, `to_set`, `to_remove`).
"""

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request

from magnetar.admin.context import text_of
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.paths import register_choice
from magnetar.admin.http.routes import Handler, Routes
from magnetar.policies.policy import Level, Policy, Rest
from magnetar.policies.registry import at, rest_of

_PARAMETERS: Final = {
    Level.NAMESPACE: (
        query("applied", "boolean", "The value in force, even if another level sets it"),
    ),
    Level.TOPIC: (
        query("applied", "boolean", "The value in force, even if another level sets it"),
        query("isGlobal", "boolean", "The value for all clusters, which is stored separately"),
    ),
}


class PolicyTable:
    """The policies of a level by their names in the REST paths."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self._getting: dict[str, Policy] = {}
        self._setting: dict[str, dict[str, Policy]] = {}
        self._removing: dict[str, dict[str, Policy]] = {}
        for policy in at(level):
            rest = self.rest(policy)
            self._getting[rest.path] = policy
            self._setting.setdefault(rest.set_verb, {})[rest.setting_path] = policy
            self._removing.setdefault(rest.remove_verb, {})[rest.removing_path] = policy

    def rest(self, policy: Policy) -> Rest:
        """Returns the policy's REST description at this level."""
        rest = rest_of(policy, self.level)
        if rest is None:
            raise LookupError(f"{policy.name} cannot be set for a {self.level.value}")
        return rest

    def to_get(self, request: Request) -> Policy:
        """Returns the policy that the request reads."""
        return self._getting[_path_of(request)]

    def to_set(self, request: Request) -> Policy:
        """Returns the policy that the request sets."""
        return self._setting[request.method][_path_of(request)]

    def to_remove(self, request: Request) -> Policy:
        """Returns the policy that the request removes."""
        return self._removing[request.method][_path_of(request)]

    def register(
        self, router: Routes, prefix: str, *, get: Handler, set_: Handler, remove: Handler
    ) -> None:
        """Adds the routes of all policies of the level."""
        self._add(router, prefix, "GET", self._getting, get, "the value that is set, or in force")
        for verb, policies in self._setting.items():
            self._add(router, prefix, verb, policies, set_, "set it")
        for verb, policies in self._removing.items():
            self._add(router, prefix, verb, policies, remove, "remove it: the level above applies")

    def _add(
        self,
        router: Routes,
        prefix: str,
        verb: str,
        paths: Iterable[str],
        handler: Handler,
        operation: str,
    ) -> None:
        words: dict[str, list[str]] = {}
        for path in paths:
            head, slash, word = path.rpartition("/")
            words.setdefault(head + slash, []).append(word)
        for head, choices in words.items():
            kind = f"{self.level.value}_{verb.lower()}_{head.strip('/') or 'policy'}"
            register_choice(kind, choices)
            full = f"{prefix}/{head}{{policy:{kind}}}"
            text = described(
                *_PARAMETERS[self.level],
                body="" if verb in ("GET", "DELETE") else "The value, see docs/use/policies.md",
            )
            router.add(verb, full, summary=f"A policy: {operation}", openapi_extra=text)(handler)


def _path_of(request: Request) -> str:
    """Returns the policy's path, of one or two segments."""
    word = text_of(request, "policy")
    before = str(request.scope["path"]).rsplit("/", 2)[-2]
    return f"persistence/{word}" if word == "bookieAffinity" and before == "persistence" else word
