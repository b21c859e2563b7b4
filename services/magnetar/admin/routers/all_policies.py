"""`/admin/v2/magnetar/{domain}/…/{topic}/policies`: all that is set for a topic itself, at once.

Pulsar has one request per policy; whoever compares many topics with what they should be (the
operator, a backup) needs one per topic. The answer has what is set, by the registry's names, in
the form of each policy's own GET; what namespace and broker say is not in it. Any broker answers,
from the metadata store.
"""

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer
from magnetar.admin.context import require_namespace, service_of, topic_not_found, topic_of
from magnetar.admin.routes import Routes
from magnetar.broker.policies.resolving import of_topic
from magnetar.broker.service import BrokerService
from magnetar.core.names import TopicName
from magnetar.policies.policy import Level
from magnetar.policies.registry import at

router = Routes(prefix="/admin/v2/magnetar", tags=("topics",))


@router.get(
    "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}/policies",
    summary="All policies that are set for a topic itself",
)
async def get_policies(request: Request) -> Response:
    service, name = service_of(request), topic_of(request).base
    await require_namespace(service, name.namespace)
    own = await service.policies.documents.read(name)
    # A record proves its topic; without one it is to be looked for.
    if own.empty and name.persistent and not await _exists(service, name):
        raise topic_not_found(name)
    found = {policy.name: of_topic(policy, own) for policy in at(Level.TOPIC)}
    return answer({policy: value for policy, value in found.items() if value is not None})


async def _exists(service: BrokerService, name: TopicName) -> bool:
    return bool(await service.resources.partitions(name)) or await service.topics.exists(name)
