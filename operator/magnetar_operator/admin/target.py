"""Tenants, namespaces, topics and subscriptions by name, and their paths in the admin REST."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from magnetar.core.names import TopicName, parse_topic
from magnetar_operator.kube import kinds

ADMIN: Final = "/admin/v2"
TENANT: Final = kinds.TENANT.kind
NAMESPACE: Final = kinds.NAMESPACE.kind
TOPIC: Final = kinds.TOPIC.kind
SUBSCRIPTION: Final = kinds.SUBSCRIPTION.kind
PERMISSION: Final = kinds.PERMISSION.kind
_ON: Final = " on "
_BETWEEN: Final = "/subscription/"


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A tenant, namespace, topic, subscription or permission of a cluster, by its full name."""

    kind: str
    name: str
    """`shop`, `shop/orders`, `persistent://shop/orders/created`; of a permission: its object."""
    subscription: str = ""
    role: str = ""
    """The role of a permission."""

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.full_name}"

    @property
    def full_name(self) -> str:
        """The name in `status.resolvedName`."""
        name = f"{self.name}{_BETWEEN}{self.subscription}" if self.subscription else self.name
        return f"{quote(self.role, safe='')}{_ON}{name}" if self.role else name

    @property
    def topic(self) -> TopicName:
        return parse_topic(self.name)

    @property
    def tenant(self) -> str:
        return self.topic.tenant if "://" in self.name else self.name.partition("/")[0]

    @property
    def namespace(self) -> str:
        """`tenant/namespace`; empty for a tenant."""
        if self.kind == TENANT:
            return ""
        return str(self.topic.namespace) if "://" in self.name else self.name

    @property
    def path(self) -> str:
        """The path in the admin REST."""
        if self.kind == PERMISSION:
            return f"{self.permissions_path}/{quote(self.role, safe='')}"
        if self.kind == TENANT:
            return f"{ADMIN}/tenants/{quote(self.name, safe='')}"
        if self.kind == NAMESPACE:
            return f"{ADMIN}/namespaces/{self.name}"
        path = topic_path(self.topic)
        if self.kind == TOPIC:
            return path
        return f"{path}/subscription/{quote(self.subscription, safe='')}"

    @property
    def permissions_path(self) -> str:
        """The path of all roles that have permissions on the object of this permission."""
        if "://" in self.name:
            return f"{topic_path(self.topic)}/permissions"
        path = f"{ADMIN}/namespaces/{self.name}/permissions"
        quoted = quote(self.subscription, safe="")
        return f"{path}/subscription/{quoted}" if self.subscription else path

    @property
    def above(self) -> "Target | None":
        """The target that contains this one; None for a tenant."""
        if self.kind == TENANT:
            return None
        if self.kind == NAMESPACE:
            return Target(TENANT, self.tenant)
        if self.kind == PERMISSION:
            return Target(TOPIC if "://" in self.name else NAMESPACE, self.name)
        return Target(TOPIC, self.name) if self.subscription else Target(NAMESPACE, self.namespace)

    @classmethod
    def parse(cls, kind: str, full_name: str) -> "Target":
        """Parses a `full_name`."""
        if kind == PERMISSION:
            role, _, rest = full_name.partition(_ON)
            name, _, subscription = rest.partition(_BETWEEN)
            return cls(kind, name, subscription, unquote(role))
        if kind == SUBSCRIPTION:
            topic, _, name = full_name.partition(_BETWEEN)
            return cls(kind, topic, name)
        return cls(kind, full_name)


def topic_path(name: TopicName) -> str:
    """The path of a topic in the admin REST."""
    return f"{ADMIN}/{name.domain}/{name.namespace}/{name.encoded_local}"


def target_token(url: str, target: Target) -> str:
    """The token under which resources wait for a target of a cluster."""
    return f"{url} {target}"
