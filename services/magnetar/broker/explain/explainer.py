"""Answers why messages are not delivered or published: gathers state, then judges it."""

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.disk import disk_use
from magnetar.broker.explain.finding import finding, time
from magnetar.broker.explain.gather.disk import ledger_states
from magnetar.broker.explain.gather.message import MessageId, message_state
from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.gather.subscription import broken, subscription_state
from magnetar.broker.explain.gather.topic import topic_state
from magnetar.broker.explain.judge.delivery import judge_subscription
from magnetar.broker.explain.judge.message import judge_message
from magnetar.broker.explain.judge.publishing import judge_topic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.documents.explain import VERSION, Explanation, Finding, utc


class Explainer:
    """Explains the topics that this broker serves."""

    def __init__(self, parts: Parts, broker_id: str) -> None:
        self._parts = parts
        self._broker_id = broker_id

    async def subscription(self, topic: PersistentTopic, name: str) -> Explanation:
        """Explains a subscription that exists."""
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            state = broken(self._parts, topic, name)
        else:
            state = await subscription_state(self._parts, topic, subscription)
        return self._answer("subscription", topic.name, judge_subscription(state), name)

    async def message(self, topic: PersistentTopic, name: str, asked: MessageId) -> Explanation:
        """Explains one message to a subscription that exists."""
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            return await self.subscription(topic, name)
        state, message = await message_state(self._parts, topic, subscription, asked)
        answer = self._answer("message", topic.name, judge_message(state, message), name)
        answer.message_id = str(asked)
        return answer

    async def topic(self, topic: PersistentTopic) -> Explanation:
        """Explains why producers are refused or slow, and what takes the topic's disk space."""
        answer = self._answer(
            "topic", topic.name, judge_topic(await topic_state(self._parts, topic))
        )
        ledgers, exact = await ledger_states(self._parts, topic)
        answer.disk = disk_use(ledgers, exact=exact)
        return answer

    def not_served(
        self, kind: str, topic: TopicName, error: MagnetarError, subscription: str = ""
    ) -> Explanation:
        """Explains a topic that cannot be opened here now."""
        moving = isinstance(error, ServiceNotReady)
        reason = finding(
            Code.TOPIC_MOVING if moving else Code.TOPIC_UNREADABLE,
            f"{topic} cannot be served now: {error.message}",
            {"error": error.message},
            steps.advise(
                "Wait some seconds and ask again: it is being moved or closed."
                if moving
                else "See whether enough bookies and the metadata store run: magnetar bookie list; "
                "magnetar ledger check."
            ),
        )
        return self._answer(kind, topic, [reason], subscription)

    def deleted(self, topic: TopicName) -> Explanation | None:
        """Explains a topic that this broker deleted as unused; None if it did not."""
        deletion = self._parts.refusals.deletion_of(str(topic))
        if deletion is None:
            return None
        reason = finding(
            Code.DELETED_AS_INACTIVE,
            f"{topic} was deleted at {utc(deletion.at_ms)} because it was unused since "
            f"{utc(deletion.last_active_ms)}.",
            {"last_active": time(deletion.last_active_ms), "policy": deletion.policy},
            steps.keep_inactive(topic),
            deletion.at_ms,
        )
        return self._answer("topic", topic, [reason])

    def whole(self, kind: str, topic: TopicName, subscription: str = "") -> Explanation:
        """Returns an answer for a partitioned topic, without its parts."""
        return self._answer(kind, topic, [], subscription)

    def _answer(
        self, kind: str, topic: TopicName, findings: list[Finding], subscription: str = ""
    ) -> Explanation:
        return Explanation(
            version=VERSION,
            kind=kind,
            topic=str(topic),
            subscription=subscription,
            broker=self._broker_id,
            at=utc(self._parts.clock.now_ms()),
            findings=findings,
        )
