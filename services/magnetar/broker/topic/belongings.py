"""What belongs to a topic beside its log: its schemas, its policies and the permissions on it.

They are deleted with the topic and never by themselves. Those of a partition belong to its topic.
"""

from magnetar.broker.catalog.resources import Resources, partitioned_key
from magnetar.broker.catalog.topic_names import topic_of_ledger
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.schema.topic_schemas import TopicSchemas
from magnetar.metadata.store import ABSENT, BadRevision, Check


class Belongings:
    """Deletes what belongs to topics."""

    def __init__(
        self, resources: Resources, schemas: TopicSchemas, policies: BrokerPolicies
    ) -> None:
        self._resources = resources
        self._schemas = schemas
        self._policies = policies

    async def forget_with_log(self, ledger: str, marked: Check) -> None:
        """Deletes what belongs to the topic of a log, whose record is deleted next.

        So any process that finishes an interrupted deletion deletes this too, and a late call
        deletes nothing of the next topic of that name. Raises BadRevision if `marked` is not valid.
        """
        topic = topic_of_ledger(ledger)
        if topic.partition_index >= 0 or await self._resources.partitions(topic):
            return
        alone = Check(partitioned_key(topic), ABSENT)
        try:
            await self._schemas.forget(topic, (marked, alone))
            await self._policies.forget(topic, (marked, alone))
        except BadRevision as error:
            if error.key != alone.key:
                raise
            # A partitioned topic of that name was created meanwhile: they belong to it.
