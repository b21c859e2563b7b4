"""What a MagnetarCluster asks for and cannot have. Pure.

The API server refuses most of it in a new object; one that was stored before it did may have it.
"""

from magnetar_operator.cluster.manifests.naming import Cluster
from magnetar_operator.cluster.manifests.pods import METADATA_ROOT, settings_data
from magnetar_operator.models.switches import switched_on


def refusals(cluster: Cluster) -> list[str]:
    """One text for each field, which names it and what to do."""
    spec = cluster.spec
    configs = {
        "broker": spec.broker.config,
        "bookie": spec.bookie.config,
        "autorecovery": spec.autorecovery.config,
    }
    found = [
        f"spec.{part}.config.{key} is not supported and has no effect: remove it or set it to false"
        for part, config in configs.items()
        for key in switched_on(config)
    ]
    external = spec.etcd.external
    if external is not None:
        secrets = {"tls": external.tls, "auth": external.auth}
        found += [
            f"spec.etcd.external.{name} is not supported and has no effect: remove it"
            for name, secret in secrets.items()
            if secret is not None
        ]
    if not cluster.separate_recovery:  # it is within the bookies, whose config goes first
        configs["bookie"] = {**configs.pop("autorecovery"), **configs["bookie"]}
    return found + _roots(cluster, configs)


def _roots(cluster: Cluster, configs: dict[str, dict[str, int | str]]) -> list[str]:
    """All parts must work below one path of the metadata store."""
    roots = {
        f"spec.{part}.config.metadata_root": settings_data(config).get(METADATA_ROOT, "")
        for part, config in configs.items()
    }
    external = cluster.spec.etcd.external
    if external is not None and external.prefix is not None:
        given = {name: root for name, root in roots.items() if root}
        roots = {"spec.etcd.external.prefix": external.prefix, **given}
    if len(set(roots.values())) <= 1:
        return []
    told = ", ".join(f"{name} is {root or 'absent'}" for name, root in roots.items())
    why = "all parts of a cluster need the same path; set it alike in each config"
    return [f"{told}: {why}, or for a new cluster once as etcd.external.prefix"]
