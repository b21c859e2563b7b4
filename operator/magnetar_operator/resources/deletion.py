"""Deletes a target from its cluster because its resource is deleted, or says what is in the way.

Gone already is success. What holds things that are not ours is not deleted: a namespace with
topics, a tenant with namespaces; nothing is ever forced, and lists are asked for anew first.
"""

from collections.abc import Collection
from typing import Final

from magnetar_operator.resources.admin_client import AdminError, NotFound, Refused, Unreachable
from magnetar_operator.resources.cluster_view import ClusterView, inhabitants
from magnetar_operator.resources.targets import NAMESPACE, TENANT, TOPIC, Target

NAMED_MAX: Final = 10
FORCE: Final = "magnetar.io/force-delete"
UNREACHABLE: Final = "ClusterUnreachable"


class Blocked(Exception):
    """It could not be deleted now."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


async def delete(view: ClusterView, target: Target, managed: Collection[str] = ()) -> None:
    """Returns when it is gone; raises Blocked. `managed` are names that have resources, too."""
    try:
        await _require_empty(view, target, managed)
        await _delete(view, target)
    except NotFound:
        pass
    except Unreachable as error:
        raise Blocked(UNREACHABLE, f"{error}. {let_go()}") from error
    except Refused as error:
        raise Blocked("Refused", f"the cluster refuses it: {error.reason}") from error
    view.gone(target)


def let_go() -> str:
    """What to do where the cluster will not come back."""
    return (
        "It is tried again until the cluster answers; if it is gone for good, annotate the "
        f'resource with {FORCE}="true": the resource goes, and what is in the cluster stays'
    )


async def delete_regardless(view: ClusterView, target: Target) -> str:
    """For who said FORCE: tries once; what kept it from being done, empty where nothing did."""
    try:
        await delete(view, target)
    except (Blocked, AdminError) as error:
        return str(error)
    return ""


async def _delete(view: ClusterView, target: Target) -> None:
    if target.kind == TOPIC:
        # Asked for and not looked up in lists, which may be behind.
        metadata = await view.client.get(f"{target.path}/partitions")
        if int((metadata or {}).get("partitions") or 0):
            await view.client.call("DELETE", f"{target.path}/partitions")
            return
    await view.client.call("DELETE", target.path)


async def _require_empty(view: ClusterView, target: Target, managed: Collection[str]) -> None:
    view.forget(target)
    if target.kind == NAMESPACE:
        left, what = await inhabitants(view, target.name), "topics"
    elif target.kind == TENANT:
        left, what = sorted(await view.namespaces(target.name) or ()), "namespaces"
    else:
        return
    if not left:
        return
    ours = [name for name in left if name in managed]
    others = [name for name in left if name not in managed]
    parts = [f"{len(left)} {what} are in {target}, and nothing is deleted with it"]
    if ours:
        parts.append(f"delete the resources of {_named(ours)}")
    if others:
        parts.append(f"nobody's resources, to be deleted by hand: {_named(others)}")
    raise Blocked("NotEmpty", "; ".join(parts))


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
