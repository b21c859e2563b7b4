"""Gathers the facts of topics from metadata, bookies and, given an admin URL, brokers.

TOPICS_AT_ONCE topics are read concurrently. A topic that cannot be read, because its bookies do not
answer or its records are malformed, is reported as a failure, and the others continue.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.api import BookieError
from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.offload.cold_files import ColdFiles
from magnetar_spark.jobs.backlog.analyse.what_if import Freed, Scenario, freed
from magnetar_spark.jobs.backlog.gather.broker import Brokers, TopicSeen
from magnetar_spark.jobs.backlog.gather.policies import Keeping, PolicyReader
from magnetar_spark.jobs.backlog.gather.topic_state import TopicState, topic_state
from magnetar_spark.jobs.backlog.scan.ages import LogAges
from magnetar_spark.jobs.progress import Advance
from magnetar_spark.log.access import RegisteredLog
from magnetar_spark.log.settings import LogSettings

TOPICS_AT_ONCE: Final = 8


@dataclass(slots=True)
class TopicFacts:
    """The facts of one topic. `seen` is None if no broker was asked, or none answered."""

    state: TopicState
    seen: TopicSeen | None
    freed: list[Freed]
    at_ms: int


@dataclass(slots=True)
class Gathered:
    """The facts of all topics. `asked` is whether an admin URL was given."""

    topics: list[TopicFacts]
    failures: list[tuple[str, str]]
    bookies: tuple[BookieRegistration, ...]
    asked: bool
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Questions:
    """The parameters that apply to every topic."""

    scenarios: Sequence[Scenario]
    default: Keeping | None
    """The limits if no policy is set; None: ask brokers, or else use Pulsar's defaults."""


async def gather(
    log: RegisteredLog,
    topics: Sequence[TopicName],
    questions: Questions,
    settings: LogSettings,
    clock: Clock,
    advance: Advance,
) -> Gathered:
    """Gathers the facts of all topics. Raises MetadataError if the store does not answer."""
    admin_url = settings.admin_url
    gathered = Gathered([], [], tuple(log.bookies.registrations()), bool(admin_url))
    async with Brokers(
        admin_url or "http://localhost", settings.admin_context(), settings.admin_headers
    ) as client:
        brokers = client if admin_url else None
        default = questions.default
        if default is None:
            default = await _defaults(brokers, gathered.notes)
        cold = ColdFiles()
        policies = PolicyReader(log.store, default)
        gatherer = _TopicGatherer(log, brokers, policies, questions, clock, cold)
        room = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def gather_topic(topic: TopicName) -> TopicFacts | None:
            async with room:
                try:
                    return await gatherer.gather(topic)
                except (MagnetarError, BookieError, TimeoutError) as error:
                    gathered.failures.append((str(topic), str(error) or type(error).__name__))
                    return None
                finally:
                    advance(1)

        try:
            results = await asyncio.gather(*(gather_topic(topic) for topic in topics))
        finally:
            await cold.close()
    gathered.topics = [facts for facts in results if facts is not None]
    for facts in gathered.topics:
        state = facts.state
        gathered.failures += [(state.name, error) for error in state.times.troubles[:1]]
    if any(facts.seen is None for facts in gathered.topics) and admin_url:
        gathered.notes.append("Of some topics no broker answered for stats.")
    return gathered


async def _defaults(brokers: Brokers | None, notes: list[str]) -> Keeping:
    if brokers is not None:
        try:
            return await brokers.defaults()
        except ServiceNotReady as error:
            notes.append(f"The brokers' defaults of retention and TTL are unknown: {error}")
            return Keeping()
    notes.append(
        "No broker was asked (--admin-url): holders of unacknowledged messages are unknown, and "
        "if neither topic nor namespace set retention and TTL, none is assumed."
    )
    return Keeping()


class _TopicGatherer:
    """Gathers the facts of single topics."""

    def __init__(
        self,
        log: RegisteredLog,
        brokers: Brokers | None,
        policies: PolicyReader,
        questions: Questions,
        clock: Clock,
        cold: ColdFiles,
    ) -> None:
        self._cold = cold
        self._log = log
        self._brokers = brokers
        self._policies = policies
        self._questions = questions
        self._clock = clock

    async def gather(self, topic: TopicName) -> TopicFacts | None:
        """The facts of a topic; None if it was deleted meanwhile."""
        keeping = await self._policies.of(topic)
        state = await topic_state(self._log.context, topic, keeping, self._cold)
        if state is None:
            return None
        at_ms = self._clock.now_ms()
        acks = {subscription.name: subscription.acks for subscription in state.subscriptions}
        ages = LogAges(state)
        limit = state.compacted.limit
        return TopicFacts(
            state,
            await self._seen(topic),
            [
                await freed(scenario, state.index, acks, keeping, ages, at_ms, limit)
                for scenario in self._questions.scenarios
            ],
            at_ms,
        )

    async def _seen(self, topic: TopicName) -> TopicSeen | None:
        if self._brokers is None:
            return None
        try:
            return await self._brokers.topic(topic)
        except ServiceNotReady:
            return None
