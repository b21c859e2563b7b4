"""The operator's permissions: the list from which the chart's roles are generated.

`python -m magnetar_operator.kube.rbac` prints it for the chart (`charts/magnetar/files/`). There
are three scopes:

- `watched`: every watched namespace (a ClusterRole if all are);
- `own`: the operator's own namespace;
- `cluster`: objects without a namespace.

A test compares the list with the requests of clusters and resources over their whole lives, in both
directions. kopf lists and watches; `KubeClient.requests` counts all other requests.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar_operator.kube import kinds
from magnetar_operator.kube.kinds import Kind

SCOPES: Final = ("watched", "own", "cluster")
WATCH: Final = ("list", "watch")
"""The verbs of kopf's watches."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on a resource, and the reason for them."""

    scope: str
    kind: Kind
    verbs: tuple[str, ...]
    reason: str
    subresource: str = ""
    names: tuple[str, ...] = ()
    """Restricts the rule to objects of these names."""

    @property
    def resource(self) -> str:
        plural = self.kind.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural


_APPLY: Final = ("get", "list", "create", "patch")
_OWNED: Final = "part of a cluster"
_REMOVABLE: Final = "part of a cluster; deleted once the spec does not need it"
_RESOURCES: Final = (
    kinds.TENANT,
    kinds.NAMESPACE,
    kinds.TOPIC,
    kinds.SUBSCRIPTION,
    kinds.PERMISSION,
)

DRIVER_RIGHTS: Final = (
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["create", "delete", "deletecollection", "get", "list", "watch"],
    },
)
"""The rights of Spark drivers in their namespace: executors are pods that the driver creates."""

DRIVER_RULE: Final = Rule(
    "watched",
    kinds.POD,
    tuple(DRIVER_RIGHTS[0]["verbs"]),
    "drivers of Spark jobs have these rights, and a role can grant only what its author has",
)
JOB_RULES: Final = (
    Rule("watched", kinds.SPARK_JOB, ("get", *WATCH), "specs"),
    Rule("watched", kinds.SPARK_JOB, ("patch",), "statuses", "status"),
    Rule("watched", kinds.BATCH_JOB, (*WATCH, "create", "delete"), "the runs of Spark jobs"),
    Rule("watched", kinds.CRON_JOB, ("get", "create", "patch"), "schedules of Spark jobs"),
    Rule("watched", kinds.ROLE, ("get", "create", "patch"), "rights of Spark drivers"),
    Rule("watched", kinds.ROLE_BINDING, ("get", "create", "patch"), "rights of Spark drivers"),
    DRIVER_RULE,
)
"""The rules for SparkJobs alone; CLUSTER_RULES has those that clusters need, too."""

CLUSTER_RULES: Final = (
    Rule("watched", kinds.CLUSTER, ("get", *WATCH), "specs"),
    Rule("watched", kinds.CLUSTER, ("patch",), "an annotation, once its request is fulfilled"),
    Rule("watched", kinds.CLUSTER, ("patch",), "statuses", "status"),
    *(
        rule
        for kind in _RESOURCES
        for rule in (
            Rule("watched", kind, WATCH, "specs"),
            Rule("watched", kind, ("patch",), "the finalizer, if deletion cleans up"),
            Rule("watched", kind, ("patch",), "statuses", "status"),
        )
    ),
    *(
        Rule("watched", kind, ("get",), "other resources refer to it")
        for kind in (kinds.NAMESPACE, kinds.TOPIC)
    ),
    Rule("watched", kinds.STATEFUL_SET, (*_APPLY, "watch"), _OWNED),
    Rule("watched", kinds.DEPLOYMENT, (*_APPLY, "watch", "delete"), _REMOVABLE),
    Rule("watched", kinds.DEPLOYMENT, ("patch",), "brokers are scaled during upgrades", "scale"),
    Rule("watched", kinds.POD, (*WATCH, "delete"), "replaced one at a time"),
    Rule("watched", kinds.PVC, ("list", "patch"), "volumes grow"),
    Rule("watched", kinds.PVC, ("get", "delete"), "a bookie's empty volume is replaced"),
    Rule("watched", kinds.SERVICE, _APPLY, _OWNED),
    Rule("watched", kinds.SERVICE_ACCOUNT, (*_APPLY, "delete"), _REMOVABLE),
    Rule("watched", kinds.CONFIG_MAP, (*_APPLY, "delete"), _REMOVABLE),
    Rule("watched", kinds.PDB, (*_APPLY, "delete"), _REMOVABLE),
    Rule("watched", kinds.HPA, (*_APPLY, "delete"), _REMOVABLE),
    Rule("watched", kinds.NETWORK_POLICY, (*_APPLY, "delete"), _REMOVABLE),
    Rule("watched", kinds.SERVICE_MONITOR, (*_APPLY, "delete"), _REMOVABLE),
    Rule("watched", kinds.EVENT, ("create", "patch"), "what the operator did, and why"),
    Rule("own", kinds.LEASE, ("get", "create", "update"), "elects the one operator that acts"),
    Rule("own", kinds.SECRET, ("get", "create", "update"), "the metrics API's certificate"),
    Rule(
        "cluster",
        kinds.API_SERVICE,
        ("get", "patch"),
        "the CA bundle of the metrics API",
        names=("v1beta1.external.metrics.k8s.io",),
    ),
)
"""The rules for clusters and the resources in them."""

RULES: Final = (*CLUSTER_RULES, *JOB_RULES)


def missing(
    requests: Iterable[tuple[str, str, str]], scopes: Iterable[str] = SCOPES
) -> list[tuple[str, str, str]]:
    """The requests (verb, group, resource) that no rule of these scopes allows."""
    allowed = set(granted(scopes))
    return sorted(request for request in set(requests) if request not in allowed)


def granted(scopes: Iterable[str] = SCOPES) -> Iterator[tuple[str, str, str]]:
    """Every verb on a resource that some rule allows."""
    for rule in RULES:
        if rule.scope in scopes:
            yield from ((verb, rule.kind.group, rule.resource) for verb in rule.verbs)


def role_rules(scope: str) -> list[dict[str, Any]]:
    """The rules of a Role; resources of a group with equal verbs share a rule."""
    grouped: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    verbs_of: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for rule in RULES:
        if rule.scope == scope:
            key = (rule.kind.group, rule.resource, rule.names)
            verbs_of.setdefault(key, set()).update(rule.verbs)
    for (group, resource, names), verbs in verbs_of.items():
        grouped.setdefault((group, tuple(sorted(verbs)), names), []).append(resource)
    return [
        {
            "apiGroups": [group],
            "resources": sorted(resources),
            **({"resourceNames": list(names)} if names else {}),
            "verbs": list(verbs),
        }
        for (group, verbs, names), resources in sorted(grouped.items())
    ]


def document() -> Mapping[str, list[dict[str, Any]]]:
    """The rules of all scopes, as the chart reads them."""
    return {scope: role_rules(scope) for scope in SCOPES}


def text() -> str:
    """The chart's file."""
    import yaml

    head = "# Made by `python -m magnetar_operator.kube.rbac`; do not edit.\n"
    return head + str(yaml.safe_dump(dict(document()), sort_keys=False))


if __name__ == "__main__":
    print(text(), end="")  # noqa: T201
