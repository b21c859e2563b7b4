"""What the OpenAPI page says of a route beside its summary: query parameters and body.

Handlers take the request itself, so what they read of it is described here, for people. Parameters
of the path are added from the path itself (`openapi.py`).
"""

from typing import Any

Described = dict[str, Any]


def query(name: str, kind: str, text: str) -> Described:
    """One query parameter."""
    return {"name": name, "in": "query", "schema": {"type": kind}, "description": text}


def described(*parameters: Described, body: str = "", example: object = None) -> Described:
    """For a route's `openapi_extra`: its query parameters, and what its body is."""
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


FORCE = query("force", "boolean", "Also where it is in use")
AUTHORITATIVE = query(
    "authoritative", "boolean", "Whether it is to be served here: not redirected again"
)
