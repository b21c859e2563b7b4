"""`/admin/v2/magnetar/{domain}/…/{topic}/policies`: all policies of a topic in one answer.

Pulsar has one request per policy. A client that compares many topics with their desired state (the
operator, a backup) needs one request per topic. The answer has the policies that are set for the
topic, by their names in the registry and in the form of each policy's own GET; it omits those of
the namespace and the broker. Any broker answers, from the metadata store.
"""

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import require_namespace, service_of, topic_not_found, topic_of
from magnetar.admin.http.answers import answer
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.policies.resolution import of_topic
from magnetar.broker.service import BrokerService
from magnetar.core.names import TopicName
from magnetar.policies.policy import Level
from magnetar.policies.registry import at

router = Routes(prefix="/admin/v2/magnetar", tags=("topics",))


@router.get(
    TOPIC_PATH + "/policies",
    summary="All policies that are set for a topic itself",
)
async def get_policies(request: Request) -> Response:
    service, name = service_of(request), topic_of(request).base
    await require_namespace(service, name.namespace)
    own = await service.policies.documents.read(name)
    # A record of policies proves that its topic exists; without one, this checks.
    if own.empty and name.persistent and not await _exists(service, name):
        raise topic_not_found(name)
    values = {policy.name: of_topic(policy, own) for policy in at(Level.TOPIC)}
    return answer({policy: value for policy, value in values.items() if value is not None})


async def _exists(service: BrokerService, name: TopicName) -> bool:
    return bool(await service.resources.partitions(name)) or await service.topics.exists(name)
