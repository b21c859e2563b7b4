"""Descriptions of query parameters and bodies for the OpenAPI document.

Handlers take the plain request, so FastAPI cannot derive the parameters that they read: routes
describe them with these functions. `openapi.py` adds the path parameters from the path.
"""

from typing import Any

Described = dict[str, Any]


def query(name: str, kind: str, text: str) -> Described:
    """Describes a query parameter."""
    return {"name": name, "in": "query", "schema": {"type": kind}, "description": text}


def described(*parameters: Described, body: str = "", example: object = None) -> Described:
    """Returns a route's `openapi_extra`: its query parameters and its body."""
    extra: Described = {}
    if parameters:
        extra["parameters"] = list(parameters)
    if body:
        content: Described = {} if example is None else {"example": example}
        extra["requestBody"] = {
            "description": body,
            "content": {"application/json": content},
        }
    return extra


FORCE = query("force", "boolean", "Delete it even if it is in use")
AUTHORITATIVE = query(
    "authoritative", "boolean", "Serve the request here instead of redirecting it again"
)
