"""Routes: described beside their handlers, matched through an index.

The modules of `routers` describe their routes with `Routes`. `RouteTable` serves all of them with
Starlette alone. Only `openapi.py` uses the texts for people (tags, summary, parameters), when a
client opens the documentation: importing FastAPI and pydantic at start-up would cost every broker
13 MiB and a third of a second.

The first route that matches the path and the method serves a request, as in Starlette's own router.
That one tries every route's regex in turn; `RouteTable` tries only the routes that have as many
segments as the path, and whose last segment is the path's or a parameter. The result is the same,
because no path parameter matches a slash (`paths.py`). `RouteTable` rejects a parameter that might.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Required, TypedDict, TypeVar, Unpack

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Receive, Scope, Send

from magnetar.admin.http.descriptions import Described

Handler = Callable[[Request], Awaitable[Response]]
Placement = Callable[[Handler, str], Handler]
"""Wraps a handler with the choice of the broker that serves the request, by the route's path."""
Endpoint = TypeVar("Endpoint", bound=Handler)

_SLASH: Final = "/"
_MIGHT_MATCH_SLASH: Final = frozenset("./^\\")
"""Characters that a parameter's regex must not have, apart from `[^/]`."""


@dataclass(frozen=True, slots=True)
class Description:
    """A route as its module describes it, for the router and for the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    placed: Handler
    """The handler inside the choice of the broker that serves the request."""
    tags: Sequence[str]
    summary: str
    openapi_extra: Described | None


class RouteOptions(TypedDict, total=False):
    """The description of a route for people, in the OpenAPI document."""

    summary: Required[str]
    tags: Sequence[str]
    openapi_extra: Described | None


@dataclass(slots=True)
class Routes:
    """The routes of a module, which decorates each handler with the method that it serves."""

    prefix: str = ""
    tags: Sequence[str] = ()
    placement: Placement | None = None
    descriptions: list[Description] = field(default_factory=list)

    def get(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[Endpoint], Endpoint]:
        return self.add("GET", path, **options)

    def put(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[Endpoint], Endpoint]:
        return self.add("PUT", path, **options)

    def post(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[Endpoint], Endpoint]:
        return self.add("POST", path, **options)

    def delete(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[Endpoint], Endpoint]:
        return self.add("DELETE", path, **options)

    def add(
        self, method: str, path: str, **options: Unpack[RouteOptions]
    ) -> Callable[[Endpoint], Endpoint]:
        """Returns the decorator that adds its handler under the method and path."""
        full_path = self.prefix + path
        tags = (*self.tags, *options.get("tags", ()))
        summary, extra = options["summary"], options.get("openapi_extra")

        def add_handler(handler: Endpoint) -> Endpoint:
            placed = self.placement(handler, full_path) if self.placement else handler
            self.descriptions.append(
                Description(method, full_path, handler, placed, tags, summary, extra)
            )
            return handler

        return add_handler


class MethodRoute(Route):
    """A route for one method. It has no HEAD: `paths.RawPaths` turns HEAD into GET."""

    def __init__(
        self, method: str, path: str, handler: Handler, *, include_in_schema: bool = True
    ) -> None:
        super().__init__(path, handler, methods=[method], include_in_schema=include_in_schema)
        self.methods: set[str] = {method}


class RouteTable(Router):
    """Finds the route of a request through an index; several applications can share a table."""

    def __init__(self, routes: Iterable[MethodRoute]) -> None:
        table = list(routes)
        super().__init__(table, redirect_slashes=False)
        self.table = table
        self._by_last, self._others = _index(table)

    def candidates(self, path: str) -> Sequence[MethodRoute]:
        """Returns the routes that may match the path, in their order."""
        segments = path.count(_SLASH)
        last = path[path.rfind(_SLASH) + 1 :]
        routes = self._by_last.get((segments, last))
        return self._others.get(segments, ()) if routes is None else routes

    def methods(self, scope: Scope) -> set[str]:
        """Returns the methods that the described routes offer for the path."""
        return {
            method
            for route in self.candidates(scope["path"])
            if route.include_in_schema and route.matches(scope)[0] is not Match.NONE
            for method in route.methods
        }

    def find(self, scope: Scope) -> "RouteMatch | None":
        """Returns the route for a request's path, if possible one of its method; None without."""
        partial: RouteMatch | None = None
        for route in self.candidates(scope["path"]):
            degree, child_scope = route.matches(scope)
            if degree is Match.FULL:
                return RouteMatch(route, child_scope, full=True)
            if degree is Match.PARTIAL and partial is None:
                partial = RouteMatch(route, child_scope, full=False)
        return partial

    async def serve(
        self, match: "RouteMatch | None", scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serves a request by what `find` returned; raises 404 or 405 if no route is for it."""
        if match is None:
            await self.default(scope, receive, send)
            return
        scope.update(match.child_scope)
        await match.route.handle(scope, receive, send)  # raises 405 for another method

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().app(scope, receive, send)
            return
        await self.serve(self.find(scope), scope, receive, send)


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a request, and its additions to the request's scope."""

    route: MethodRoute
    child_scope: Scope
    full: bool
    """Whether the route also serves the request's method."""


def _index(
    table: Sequence[MethodRoute],
) -> tuple[dict[tuple[int, str], list[MethodRoute]], dict[int, list[MethodRoute]]]:
    """Returns the routes by segment count and last segment, and those that end with a parameter.

    The latter are by segment count alone, for paths whose last segment is in no route. They are
    in the first index, too.
    """
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
    """Returns how many segments the route's path has, and the last one; None for a parameter."""
    for name, convertor in route.param_convertors.items():
        if not _MIGHT_MATCH_SLASH.isdisjoint(convertor.regex.replace("[^/]", "")):
            raise ValueError(f"Parameter {name} of {route.path} might match a slash")
    last = route.path[route.path.rfind(_SLASH) + 1 :]
    return route.path.count(_SLASH), None if "{" in last else last
