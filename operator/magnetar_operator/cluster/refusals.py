"""Lists the requests of a MagnetarCluster that cannot be fulfilled. Pure: no IO.

The API server refuses most of them in new objects; an object that was stored before may have them.
"""

from collections.abc import Mapping

from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import Cluster
from magnetar_operator.cluster.manifests.pods import METADATA_ROOT, settings_data
from magnetar_operator.models.switches import switched_on, way_out


def refusals(cluster: Cluster) -> list[str]:
    """A text per refused field, which names it and says what to do."""
    spec = cluster.spec
    configs = {
        "broker": spec.broker.config,
        "bookie": spec.bookie.config,
        "autorecovery": spec.autorecovery.config,
    }
    texts = [
        f"spec.{part}.config.{key} {way_out(key)}"
        for part, config in configs.items()
        for key in switched_on(config)
    ]
    texts += _overrides("broker", spec.broker.config, security.broker_settings(cluster))
    texts += _overrides("bookie", spec.bookie.config, security.bookie_settings(cluster))
    external = spec.etcd.external
    if external is not None:
        secrets = {"tls": external.tls, "auth": external.auth}
        texts += [
            f"spec.etcd.external.{name} is not supported and has no effect: remove it"
            for name, secret in secrets.items()
            if secret is not None
        ]
    if not cluster.separate_recovery:  # it runs in the bookies, whose config has precedence
        configs["bookie"] = {**configs.pop("autorecovery"), **configs["bookie"]}
    return texts + _roots(cluster, configs)


def _overrides(part: str, config: Mapping[str, object], closed: Mapping[str, str]) -> list[str]:
    """Settings in `config` that spec.tls and spec.auth set: they would open what these close."""
    own = settings_data(closed)
    return [
        f"spec.{part}.config.{key} is set by spec.tls and spec.auth: remove it"
        for key in sorted(config)
        if settings_data({key: ""}).keys() & own.keys()
    ]


def _roots(cluster: Cluster, configs: dict[str, dict[str, int | str]]) -> list[str]:
    """All components must use the same path of the metadata store."""
    roots = {
        f"spec.{part}.config.metadata_root": settings_data(config).get(METADATA_ROOT, "")
        for part, config in configs.items()
    }
    external = cluster.spec.etcd.external
    if external is not None and external.prefix is not None:
        explicit = {name: root for name, root in roots.items() if root}
        roots = {"spec.etcd.external.prefix": external.prefix, **explicit}
    if len(set(roots.values())) <= 1:
        return []
    paths = ", ".join(f"{name} is {root or 'absent'}" for name, root in roots.items())
    advice = "all components need the same path; set the same value in each config"
    return [f"{paths}: {advice}, or for a new cluster once as etcd.external.prefix"]
