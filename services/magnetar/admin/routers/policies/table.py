"""The registry's paths as routes: one for each verb and level, whose last segment is the policy.

Two policies of a level never share a path and a verb. `of(request)` says which one a request is
about, from the segment that the route matched.
"""

from collections.abc import Callable, Iterable
from typing import Final

from starlette.requests import Request

from magnetar.admin.context import text_of
from magnetar.admin.described import described, query
from magnetar.admin.paths import register_choice
from magnetar.admin.routes import Handler, Routes
from magnetar.policies.policy import Level, Policy, Rest
from magnetar.policies.registry import at, rest_of

_PARAMETERS: Final = {
    Level.NAMESPACE: (query("applied", "boolean", "What holds, also where it is not set here"),),
    Level.TOPIC: (
        query("applied", "boolean", "What holds, also where it is not set here"),
        query("isGlobal", "boolean", "The value for all clusters, kept apart from this one's"),
    ),
}


class PolicyTable:
    """The policies of one level by what REST calls them."""

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
        rest = rest_of(policy, self.level)
        if rest is None:
            raise LookupError(f"{policy.name} cannot be set for a {self.level.value}")
        return rest

    def gotten(self, request: Request) -> Policy:
        return self._getting[_path_of(request)]

    def set(self, request: Request) -> Policy:
        return self._setting[request.method][_path_of(request)]

    def removed(self, request: Request) -> Policy:
        return self._removing[request.method][_path_of(request)]

    def register(
        self, router: Routes, prefix: str, *, get: Handler, set_: Handler, remove: Handler
    ) -> None:
        """Adds the routes of all policies of the level."""
        self._add(router, prefix, "GET", self._getting, get, "as it is set, or as it holds")
        for verb, policies in self._setting.items():
            self._add(router, prefix, verb, policies, set_, "set it")
        for verb, policies in self._removing.items():
            self._add(router, prefix, verb, policies, remove, "remove it: the level above holds")

    def _add(
        self,
        router: Routes,
        prefix: str,
        verb: str,
        paths: Iterable[str],
        handler: Handler,
        doing: str,
    ) -> None:
        register = _REGISTER[verb]
        words: dict[str, list[str]] = {}
        for path in paths:
            head, slash, word = path.rpartition("/")
            words.setdefault(head + slash, []).append(word)
        for head, some in words.items():
            kind = f"{self.level.value}_{verb.lower()}_{head.strip('/') or 'policy'}"
            register_choice(kind, some)
            full = f"{prefix}/{head}{{policy:{kind}}}"
            text = described(
                *_PARAMETERS[self.level],
                body="" if verb in ("GET", "DELETE") else "The value; docs/policies.md has each",
            )
            register(router, full, summary=f"A policy: {doing}", openapi_extra=text)(handler)


def _path_of(request: Request) -> str:
    """The policy's path, of one or two segments."""
    word = text_of(request, "policy")
    before = str(request.scope["path"]).rsplit("/", 2)[-2]
    return f"persistence/{word}" if word == "bookieAffinity" and before == "persistence" else word


_REGISTER: Final[dict[str, Callable[..., Callable[[Handler], Handler]]]] = {
    "GET": Routes.get,
    "POST": Routes.post,
    "PUT": Routes.put,
    "DELETE": Routes.delete,
}
