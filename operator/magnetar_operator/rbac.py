"""What the operator may do, and nothing more: the one list that the chart's roles are made from.

`python -m magnetar_operator.rbac` prints it for the chart (`charts/magnetar/files/`). Three scopes:

- `watched`: in every namespace that is watched (a ClusterRole where all are);
- `own`: in the namespace that the operator runs in;
- `cluster`: objects that are in no namespace.

A test holds the requests of whole lives of clusters and resources against it, in both directions.
kopf lists and watches; all other requests are counted by `KubeClient.requests`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar_operator import api_kinds as kinds
from magnetar_operator.api_kinds import Kind

SCOPES: Final = ("watched", "own", "cluster")
WATCH: Final = ("list", "watch")
"""By kopf."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Some verbs on one resource."""

    scope: str
    kind: Kind
    verbs: tuple[str, ...]
    why: str
    subresource: str = ""
    names: tuple[str, ...] = ()
    """Only of these objects."""

    @property
    def resource(self) -> str:
        plural = self.kind.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural


_APPLY: Final = ("get", "list", "create", "patch")
_OWNED: Final = "part of a cluster"
_LEAVABLE: Final = "part of a cluster; goes where the spec asks for it no more"
_RESOURCES: Final = (kinds.TENANT, kinds.NAMESPACE, kinds.TOPIC, kinds.SUBSCRIPTION)

DRIVER_RIGHTS: Final = (
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["create", "delete", "deletecollection", "get", "list", "watch"],
    },
)
"""Of the drivers of Spark jobs, in their namespace: executors are pods that the driver makes."""

GIVEN_ON: Final = Rule(
    "watched",
    kinds.POD,
    tuple(DRIVER_RIGHTS[0]["verbs"]),
    "drivers of Spark jobs have these rights, and nobody can give what he has not",
)
JOB_RULES: Final = (
    Rule("watched", kinds.SPARK_JOB, ("get", *WATCH), "what is wanted"),
    Rule("watched", kinds.SPARK_JOB, ("patch",), "what is seen", "status"),
    Rule("watched", kinds.BATCH_JOB, (*WATCH, "create", "delete"), "the runs of Spark jobs"),
    Rule("watched", kinds.CRON_JOB, ("get", "create", "patch"), "schedules of Spark jobs"),
    Rule("watched", kinds.ROLE, ("get", "create", "patch"), "what drivers of Spark jobs may do"),
    Rule("watched", kinds.ROLE_BINDING, ("get", "create", "patch"), "the same"),
    GIVEN_ON,
)
"""For SparkJobs; what they have in common with clusters is there."""

CLUSTER_RULES: Final = (
    Rule("watched", kinds.CLUSTER, ("get", *WATCH), "what is wanted"),
    Rule("watched", kinds.CLUSTER, ("patch",), "an annotation, once what it asks for is done"),
    Rule("watched", kinds.CLUSTER, ("patch",), "what is seen", "status"),
    *(
        rule
        for kind in _RESOURCES
        for rule in (
            Rule("watched", kind, WATCH, "what is wanted"),
            Rule("watched", kind, ("patch",), "the finalizer, where deletion cleans up"),
            Rule("watched", kind, ("patch",), "what is seen", "status"),
        )
    ),
    *(
        Rule("watched", kind, ("get",), "others refer to it")
        for kind in (kinds.NAMESPACE, kinds.TOPIC)
    ),
    Rule("watched", kinds.STATEFUL_SET, (*_APPLY, "watch"), _OWNED),
    Rule("watched", kinds.DEPLOYMENT, (*_APPLY, "watch", "delete"), _LEAVABLE),
    Rule("watched", kinds.DEPLOYMENT, ("patch",), "brokers are scaled during upgrades", "scale"),
    Rule("watched", kinds.POD, (*WATCH, "delete"), "one at a time, to replace it"),
    Rule("watched", kinds.PVC, ("list", "patch"), "volumes grow"),
    Rule("watched", kinds.PVC, ("get", "delete"), "a bookie's, to replace it: it is proven empty"),
    Rule("watched", kinds.SERVICE, _APPLY, _OWNED),
    Rule("watched", kinds.SERVICE_ACCOUNT, (*_APPLY, "delete"), _LEAVABLE),
    Rule("watched", kinds.CONFIG_MAP, (*_APPLY, "delete"), _LEAVABLE),
    Rule("watched", kinds.PDB, (*_APPLY, "delete"), _LEAVABLE),
    Rule("watched", kinds.HPA, (*_APPLY, "delete"), _LEAVABLE),
    Rule("watched", kinds.NETWORK_POLICY, (*_APPLY, "delete"), _LEAVABLE),
    Rule("watched", kinds.SERVICE_MONITOR, (*_APPLY, "delete"), _LEAVABLE),
    Rule("watched", kinds.EVENT, ("create", "patch"), "what was done, and why"),
    Rule("own", kinds.LEASE, ("get", "create", "update"), "which of several operators acts"),
    Rule("own", kinds.SECRET, ("get", "create", "update"), "the metrics API's certificate"),
    Rule(
        "cluster",
        kinds.API_SERVICE,
        ("get", "patch"),
        "the metrics API's certificate, told to the API server",
        names=("v1beta1.external.metrics.k8s.io",),
    ),
)
"""For clusters, and for what is in them."""

RULES: Final = (*CLUSTER_RULES, *JOB_RULES)


def missing(
    requests: Iterable[tuple[str, str, str]], scopes: Iterable[str] = SCOPES
) -> list[tuple[str, str, str]]:
    """The requests (verb, group, resource) that no rule of these scopes allows."""
    allowed = set(granted(scopes))
    return sorted(one for one in set(requests) if one not in allowed)


def granted(scopes: Iterable[str] = SCOPES) -> Iterator[tuple[str, str, str]]:
    """Every verb that is allowed somewhere."""
    for rule in RULES:
        if rule.scope in scopes:
            yield from ((verb, rule.kind.group, rule.resource) for verb in rule.verbs)


def role_rules(scope: str) -> list[dict[str, Any]]:
    """As a Role has them: resources of a group with equal verbs are one rule."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    verbs_of: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for rule in RULES:
        if rule.scope == scope:
            key = (rule.kind.group, rule.resource, rule.names)
            verbs_of.setdefault(key, set()).update(rule.verbs)
    for (group, resource, names), verbs in verbs_of.items():
        found.setdefault((group, tuple(sorted(verbs)), names), []).append(resource)
    return [
        {
            "apiGroups": [group],
            "resources": sorted(resources),
            **({"resourceNames": list(names)} if names else {}),
            "verbs": list(verbs),
        }
        for (group, verbs, names), resources in sorted(found.items())
    ]


def document() -> Mapping[str, list[dict[str, Any]]]:
    """All scopes, as the chart reads them."""
    return {scope: role_rules(scope) for scope in SCOPES}


def text() -> str:
    """The chart's file."""
    import yaml

    head = "# Made by `python -m magnetar_operator.rbac`; do not edit.\n"
    return head + str(yaml.safe_dump(dict(document()), sort_keys=False))


if __name__ == "__main__":
    print(text(), end="")  # noqa: T201
