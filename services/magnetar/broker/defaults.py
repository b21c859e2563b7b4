"""What every user finds at the first start: a cluster, and two tenants with a namespace each.

The cluster's own record is written last and says that the rest was made, so that a start that was
cut short is made whole by the next, several brokers may start at once, and what somebody deleted
later stays deleted.
"""

import contextlib
from typing import Final

from magnetar.broker.namespace_policies import default_policies
from magnetar.broker.resources import Resources
from magnetar.core.errors import Conflict
from magnetar.core.names import NamespaceName

DEFAULT_NAMESPACES: Final = ("public/default", "pulsar/system")


async def ensure_defaults(
    resources: Resources, cluster: str, *, service_url: str, http_url: str, only_broker: bool
) -> None:
    """Makes what is missing. The only broker of a cluster also renews the cluster's addresses."""
    urls = {"serviceUrl": http_url, "brokerServiceUrl": service_url}
    if cluster in await resources.clusters():
        if only_broker:
            await resources.update_cluster(cluster, {**await resources.cluster(cluster), **urls})
        return
    for name in DEFAULT_NAMESPACES:
        namespace = NamespaceName.parse(name)
        with contextlib.suppress(Conflict):  # another process of the cluster made it
            await resources.create_tenant(
                namespace.tenant, {"adminRoles": [], "allowedClusters": [cluster]}
            )
        with contextlib.suppress(Conflict):
            await resources.create_namespace(namespace, default_policies(cluster))
    with contextlib.suppress(Conflict):
        await resources.create_cluster(cluster, urls)
