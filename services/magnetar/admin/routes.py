"""Routes: described beside their handlers, matched through an index.

A module of `routers` describes its routes with `Routes`; `RouteTable` serves those of all modules
with Starlette alone. What only people read of a description (tags, summary, parameters) waits for
`openapi.py`, which hands it to FastAPI when somebody opens the page: FastAPI and pydantic would
cost every broker 13 MiB and a third of a second at its start.

The first route that takes path and method serves a request, as with Starlette's own router, which
tries one regex after the other. Here only those are tried that have as many segments as the path,
and end with its last one or with a parameter. That is exact, because no parameter of a path
matches a slash (`paths.py`); `RouteTable` refuses one that would.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Receive, Scope, Send

from magnetar.admin.described import Described

Handler = Callable[[Request], Awaitable[Response]]
Placing = Callable[[Handler, str], Handler]
"""Gives a handler and its path the handler that decides where the request is served."""
Endpoint = TypeVar("Endpoint", bound=Handler)

_SLASH: Final = "/"
_MIGHT_MATCH_SLASH: Final = frozenset("./^\\")
"""What a parameter's expression may not have beside `[^/]`."""


@dataclass(frozen=True, slots=True)
class Description:
    """A route, as its module describes it."""

    method: str
    path: str
    handler: Handler
    placed: Handler
    """The handler, or what decides where it runs."""
    tags: Sequence[str]
    summary: str
    openapi_extra: Described | None


@dataclass(slots=True)
class Routes:
    """The routes of one module: decorate handlers with the method they serve."""

    prefix: str = ""
    tags: Sequence[str] = ()
    placing: Placing | None = None
    descriptions: list[Description] = field(default_factory=list)

    def get(
        self,
        path: str,
        *,
        summary: str,
        tags: Sequence[str] = (),
        openapi_extra: Described | None = None,
    ) -> Callable[[Endpoint], Endpoint]:
        return self._described("GET", path, summary, tags, openapi_extra)

    def put(
        self,
        path: str,
        *,
        summary: str,
        tags: Sequence[str] = (),
        openapi_extra: Described | None = None,
    ) -> Callable[[Endpoint], Endpoint]:
        return self._described("PUT", path, summary, tags, openapi_extra)

    def post(
        self,
        path: str,
        *,
        summary: str,
        tags: Sequence[str] = (),
        openapi_extra: Described | None = None,
    ) -> Callable[[Endpoint], Endpoint]:
        return self._described("POST", path, summary, tags, openapi_extra)

    def delete(
        self,
        path: str,
        *,
        summary: str,
        tags: Sequence[str] = (),
        openapi_extra: Described | None = None,
    ) -> Callable[[Endpoint], Endpoint]:
        return self._described("DELETE", path, summary, tags, openapi_extra)

    def _described(
        self,
        method: str,
        path: str,
        summary: str,
        tags: Sequence[str],
        extra: Described | None,
    ) -> Callable[[Endpoint], Endpoint]:
        full, every_tag = self.prefix + path, (*self.tags, *tags)

        def mark(handler: Endpoint) -> Endpoint:
            placed = self.placing(handler, full) if self.placing else handler
            self.descriptions.append(
                Description(method, full, handler, placed, every_tag, summary, extra)
            )
            return handler

        return mark


class MethodRoute(Route):
    """A route for one method. HEAD comes as GET (`paths.RawPaths`): it is none of its own."""

    def __init__(
        self, method: str, path: str, handler: Handler, *, include_in_schema: bool = True
    ) -> None:
        super().__init__(path, handler, methods=[method], include_in_schema=include_in_schema)
        self.methods: set[str] = {method}


class RouteTable(Router):
    """See the module's text. One can serve several applications."""

    def __init__(self, routes: Iterable[MethodRoute]) -> None:
        table = list(routes)
        super().__init__(table, redirect_slashes=False)
        self._by_last, self._others = _index(table)

    def candidates(self, path: str) -> Sequence[MethodRoute]:
        """The routes that may take the path, in their order."""
        segments = path.count(_SLASH)
        last = path[path.rfind(_SLASH) + 1 :]
        found = self._by_last.get((segments, last))
        return self._others.get(segments, ()) if found is None else found

    def methods(self, scope: Scope) -> set[str]:
        """What the path is offered for, by all described routes together."""
        return {
            method
            for route in self.candidates(scope["path"])
            if route.include_in_schema and route.matches(scope)[0] is not Match.NONE
            for method in route.methods
        }

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().app(scope, receive, send)
            return
        partial: tuple[MethodRoute, Scope] | None = None
        for route in self.candidates(scope["path"]):
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                scope.update(child_scope)
                await route.handle(scope, receive, send)
                return
            if match is Match.PARTIAL and partial is None:
                partial = route, child_scope
        if partial is None:
            await self.default(scope, receive, send)
            return
        route, child_scope = partial
        scope.update(child_scope)
        await route.handle(scope, receive, send)  # raises 405


def _index(
    table: Sequence[MethodRoute],
) -> tuple[dict[tuple[int, str], list[MethodRoute]], dict[int, list[MethodRoute]]]:
    """Routes by their segments and last segment; and those that end with a parameter by their
    segments, for paths whose last segment is none of these. The latter are in both."""
    endings = [(route, *_ending(route)) for route in table]
    by_last: dict[tuple[int, str], list[MethodRoute]] = {
        (segments, last): [] for _, segments, last in endings if last is not None
    }
    others: dict[int, list[MethodRoute]] = {}
    for route, segments, last in endings:
        if last is not None:
            by_last[segments, last].append(route)
            continue
        others.setdefault(segments, []).append(route)
        for key, routes in by_last.items():
            if key[0] == segments:
                routes.append(route)
    return by_last, others


def _ending(route: MethodRoute) -> tuple[int, str | None]:
    """How many segments the route's path has, and the last one; None for a parameter."""
    for name, convertor in route.param_convertors.items():
        if not _MIGHT_MATCH_SLASH.isdisjoint(convertor.regex.replace("[^/]", "")):
            raise ValueError(f"Parameter {name} of {route.path} might match a slash")
    last = route.path[route.path.rfind(_SLASH) + 1 :]
    return route.path.count(_SLASH), None if "{" in last else last
