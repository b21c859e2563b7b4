"""Creates what every cluster starts with: its record, and two tenants with a namespace each.

The cluster's own record is written last and marks completion. So the next start completes an
interrupted one, several brokers may start at once, and what is deleted later stays deleted.
"""

import contextlib
from typing import Final

from magnetar.broker.catalog.namespace_policies import BUNDLES_DEFAULT, default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.core.errors import Conflict
from magnetar.core.names import NamespaceName

DEFAULT_NAMESPACES: Final = ("public/default", "pulsar/system")


async def ensure_defaults(
    resources: Resources,
    cluster: str,
    *,
    service_url: str,
    http_url: str,
    service_url_tls: str = "",
    http_url_tls: str = "",
    only_broker: bool,
    bundles: int = BUNDLES_DEFAULT,
) -> None:
    """Creates missing defaults, each namespace with so many bundles.

    A cluster's only broker also updates the cluster's addresses."""
    urls = {"serviceUrl": http_url, "brokerServiceUrl": service_url}
    if service_url_tls:
        urls["brokerServiceUrlTls"] = service_url_tls
    if http_url_tls:
        urls["serviceUrlTls"] = http_url_tls
    if cluster in await resources.clusters():
        if only_broker:
            await resources.update_cluster(cluster, lambda stored: {**stored, **urls})
        return
    for name in DEFAULT_NAMESPACES:
        namespace = NamespaceName.parse(name)
        with contextlib.suppress(Conflict):  # created by another process of the cluster
            await resources.create_tenant(
                namespace.tenant, {"adminRoles": [], "allowedClusters": [cluster]}
            )
        with contextlib.suppress(Conflict):
            await resources.create_namespace(namespace, default_policies(cluster, bundles))
    with contextlib.suppress(Conflict):
        await resources.create_cluster(cluster, urls)
