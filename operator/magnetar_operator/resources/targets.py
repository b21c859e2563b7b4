"""What a resource stands for in a cluster, and which other resources say so. Pure.

A `Target` is a tenant, a namespace, a topic or a subscription by its full name. Names come from
`spec`, or are put together from references (`namespaceRef`, `topicRef`), which may not be there
yet: then `NotYet` says what is waited for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName, parse_topic
from magnetar_operator.api_kinds import Object
from magnetar_operator.models.resources import (
    NamespaceSpec,
    Placed,
    SubscriptionSpec,
    TenantSpec,
    TopicSpec,
)

ADMIN: Final = "/admin/v2"
TENANT: Final = "Tenant"
NAMESPACE: Final = "Namespace"
TOPIC: Final = "Topic"
SUBSCRIPTION: Final = "Subscription"
ORDER: Final = (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION)
"""Each needs the one before it."""
SPECS: Final[Mapping[str, type[Placed]]] = {
    TENANT: TenantSpec,
    NAMESPACE: NamespaceSpec,
    TOPIC: TopicSpec,
    SUBSCRIPTION: SubscriptionSpec,
}
_BETWEEN: Final = "/subscription/"

Lookup = Callable[[str, str], Object | None]
"""A resource of the same Kubernetes namespace, by kind and name."""


class NotYet(Exception):
    """Something else must be there first. `token` names it: who makes it wakes who waits."""

    def __init__(self, reason: str, message: str, token: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.token = token


class BadSpec(ValueError):
    """The manifest says something that cannot be; only its author can change that."""


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One thing in a cluster."""

    kind: str
    name: str
    """`shop`, `shop/orders`, `persistent://shop/orders/created`."""
    subscription: str = ""

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.full_name}"

    @property
    def full_name(self) -> str:
        """As `status.resolvedName` has it."""
        return f"{self.name}{_BETWEEN}{self.subscription}" if self.subscription else self.name

    @property
    def topic(self) -> TopicName:
        return parse_topic(self.name)

    @property
    def tenant(self) -> str:
        return self.topic.tenant if "://" in self.name else self.name.partition("/")[0]

    @property
    def namespace(self) -> str:
        """`tenant/namespace`; empty of a tenant."""
        if self.kind == TENANT:
            return ""
        return str(self.topic.namespace) if "://" in self.name else self.name

    @property
    def path(self) -> str:
        """In the admin REST."""
        if self.kind == TENANT:
            return f"{ADMIN}/tenants/{quote(self.name, safe='')}"
        if self.kind == NAMESPACE:
            return f"{ADMIN}/namespaces/{self.name}"
        path = topic_path(self.topic)
        if self.kind == TOPIC:
            return path
        return f"{path}/subscription/{quote(self.subscription, safe='')}"

    @property
    def above(self) -> "Target | None":
        """What it is in."""
        if self.kind == TENANT:
            return None
        if self.kind == NAMESPACE:
            return Target(TENANT, self.tenant)
        return Target(TOPIC, self.name) if self.subscription else Target(NAMESPACE, self.namespace)

    @classmethod
    def parse(cls, kind: str, full_name: str) -> "Target":
        """The inverse of `full_name`."""
        if kind == SUBSCRIPTION:
            topic, _, name = full_name.partition(_BETWEEN)
            return cls(kind, topic, name)
        return cls(kind, full_name)


def topic_path(name: TopicName) -> str:
    return f"{ADMIN}/{name.domain}/{name.namespace}/{name.encoded_local}"


def resource_token(kind: str, kube_namespace: str, name: str) -> str:
    """Names a resource for those who wait for it."""
    return f"{kind} {kube_namespace}/{name}"


def target_token(url: str, target: Target) -> str:
    """Names a thing in a cluster for those who wait for it."""
    return f"{url} {target}"


def parse_spec(one: Object) -> Placed:
    """`spec` of a resource of one of the four kinds; raises BadSpec."""
    try:
        return SPECS[one["kind"]].parse(one.get("spec") or {})
    except ValueError as error:  # of msgspec, which names the field
        raise BadSpec(f"spec: {error}") from error


def target_of(one: Object, find: Lookup) -> Target:
    """What the resource stands for; raises NotYet and BadSpec."""
    try:
        return _target_of(one, find)
    except MagnetarError as error:
        raise BadSpec(str(error)) from error


def _target_of(one: Object, find: Lookup) -> Target:
    spec = parse_spec(one)
    own_name = one["metadata"]["name"]
    match spec:
        case TenantSpec():
            return Target(TENANT, spec.name or own_name)
        case NamespaceSpec():
            name = spec.name or own_name
            if "/" not in name:
                if not spec.tenant:
                    raise BadSpec("spec.tenant must be there, or spec.name be TENANT/NAME")
                name = f"{spec.tenant}/{name}"
            return Target(NAMESPACE, name)
        case TopicSpec():
            return Target(TOPIC, str(_topic_name(one, spec, find)))
        case SubscriptionSpec():
            topic = spec.topic
            if spec.topic_ref is not None:
                topic = target_of(_referred(one, TOPIC, spec.topic_ref.name, find), find).name
            if not topic:
                raise BadSpec("spec.topic or spec.topicRef must be there")
            return Target(SUBSCRIPTION, str(parse_topic(topic).base), spec.name or own_name)
    raise BadSpec(f"{one['kind']} is no kind of these")


def _topic_name(one: Object, spec: TopicSpec, find: Lookup) -> TopicName:
    name = spec.name or one["metadata"]["name"]
    domain = "non-persistent" if spec.persistent is False else "persistent"
    if spec.namespace_ref is not None:
        referred = _referred(one, NAMESPACE, spec.namespace_ref.name, find)
        return parse_topic(f"{domain}://{target_of(referred, find).name}/{name}")
    if "/" not in name:
        raise BadSpec("spec.name must be TENANT/NAMESPACE/TOPIC, or spec.namespaceRef be there")
    return parse_topic(name if "://" in name else f"{domain}://{name}")


def _referred(one: Object, kind: str, name: str, find: Lookup) -> Object:
    found = find(kind, name)
    if found is None:
        raise NotYet(
            f"WaitingFor{kind}",
            f"there is no {kind} resource {name!r} in this Kubernetes namespace: create it",
            resource_token(kind, one["metadata"].get("namespace", ""), name),
        )
    return found


def placed_by(one: Object, find: Lookup) -> Object:
    """The resource whose clusterRef or adminUrl counts: the first, upwards along references, that
    has one; else this one."""
    looked_at: Object | None = one
    while looked_at is not None:
        spec: Mapping[str, Any] = looked_at.get("spec") or {}
        if spec.get("clusterRef") or spec.get("adminUrl"):
            return looked_at
        if reference := spec.get("namespaceRef"):
            looked_at = find(NAMESPACE, reference.get("name", ""))
        elif reference := spec.get("topicRef"):
            looked_at = find(TOPIC, reference.get("name", ""))
        else:
            looked_at = None
    return one
