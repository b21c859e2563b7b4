"""Deletes the target of a deleted resource from its cluster, or reports what blocks the deletion.

Deleting a target that does not exist succeeds. A target with contents is not deleted: a namespace
with topics, a tenant with namespaces. Deletions are never forced, and rely on no cached lists.
"""

from collections.abc import Collection
from typing import Final

from magnetar_operator.admin.client import AdminError, NotFound, Refused, Unreachable
from magnetar_operator.admin.target import NAMESPACE, TENANT, TOPIC, Target
from magnetar_operator.admin.view import ClusterView, inhabitants
from magnetar_operator.catalog.effects import count

NAMED_MAX: Final = 10
FORCE: Final = "magnetar.io/force-delete"
UNREACHABLE: Final = "ClusterUnreachable"


class Blocked(Exception):
    """The target could not be deleted now."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


async def delete(view: ClusterView, target: Target, managed: Collection[str] = ()) -> None:
    """Deletes the target. Raises Blocked. `managed`: names in it that have their own resources."""
    try:
        await _require_empty(view, target, managed)
        await _delete(view, target)
    except NotFound:
        pass
    except Unreachable as error:
        raise Blocked(UNREACHABLE, f"{error}. {force_hint()}") from error
    except Refused as error:
        raise Blocked("Refused", f"the cluster refuses it: {error.reason}") from error
    view.deleted(target)


def force_hint() -> str:
    """Returns the hint for people whose cluster never answers again."""
    return (
        "The deletion is retried until the cluster answers; if it is gone for good, annotate the "
        f'resource with {FORCE}="true": the resource is deleted, and its target in the cluster '
        "stays"
    )


async def try_delete(view: ClusterView, target: Target) -> str:
    """Tries once to delete the target (FORCE); returns the error, or an empty text."""
    try:
        await delete(view, target)
    except (Blocked, AdminError) as error:
        return str(error)
    return ""


async def _delete(view: ClusterView, target: Target) -> None:
    if target.kind == TOPIC:
        # Not from the cached lists, which may be outdated.
        metadata = await view.client.get(f"{target.path}/partitions")
        if int((metadata or {}).get("partitions") or 0):
            await view.client.call("DELETE", f"{target.path}/partitions")
            return
    await view.client.call("DELETE", target.path)


async def _require_empty(view: ClusterView, target: Target, managed: Collection[str]) -> None:
    view.forget(target)
    if target.kind == NAMESPACE:
        contents, noun = await inhabitants(view, target.name), "topic"
    elif target.kind == TENANT:
        contents, noun = sorted(await view.namespaces(target.name) or ()), "namespace"
    else:
        return
    if not contents:
        return
    ours = [name for name in contents if name in managed]
    others = [name for name in contents if name not in managed]
    verb = "is" if len(contents) == 1 else "are"
    parts = [f"{target} still has {count(len(contents), noun)}, which {verb} not deleted with it"]
    if ours:
        parts.append(f"delete the resources of {_named(ours)}")
    if others:
        parts.append(f"delete by hand, they have no resources: {_named(others)}")
    raise Blocked("NotEmpty", "; ".join(parts))


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
