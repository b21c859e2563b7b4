"""All that is asked of metadata, bookies and (where a URL is given) brokers, topic by topic.

TOPICS_AT_ONCE at a time. A topic that cannot be read (its bookies are away, its records are not
understood) is a failure of its own, and the others go on.
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
from magnetar_spark.jobs.backlog.ages import LogAges
from magnetar_spark.jobs.backlog.broker import Brokers, TopicSeen
from magnetar_spark.jobs.backlog.policies import Keeping, PolicyReader
from magnetar_spark.jobs.backlog.topic_state import TopicState, topic_state
from magnetar_spark.jobs.backlog.what_if import Freed, Scenario, freed
from magnetar_spark.jobs.progress import Advance
from magnetar_spark.log.access import Log

TOPICS_AT_ONCE: Final = 8


@dataclass(slots=True)
class TopicFacts:
    """One topic. `seen` is None where no broker was asked, or none answered."""

    state: TopicState
    seen: TopicSeen | None
    freed: list[Freed]
    at_ms: int


@dataclass(slots=True)
class Gathered:
    """See the module's text. `asked` is whether there was an admin URL."""

    topics: list[TopicFacts]
    failures: list[tuple[str, str]]
    bookies: tuple[BookieRegistration, ...]
    asked: bool
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Questions:
    """What is wanted of every topic."""

    scenarios: Sequence[Scenario]
    default: Keeping | None
    """What holds where nothing is set; None: brokers are asked, else Pulsar's own."""


async def gather(
    log: Log,
    topics: Sequence[TopicName],
    questions: Questions,
    admin_url: str,
    clock: Clock,
    advance: Advance,
) -> Gathered:
    """Raises MetadataError where the store does not answer at all."""
    found = Gathered([], [], tuple(log.bookies.registrations()), bool(admin_url))
    async with Brokers(admin_url or "http://localhost") as client:
        brokers = client if admin_url else None
        default = questions.default
        if default is None:
            default = await _defaults(brokers, found.notes)
        cold = ColdFiles()
        asking = _Asking(log, brokers, PolicyReader(log.store, default), questions, clock, cold)
        room = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def one(topic: TopicName) -> TopicFacts | None:
            async with room:
                try:
                    return await asking.topic(topic)
                except (MagnetarError, BookieError, TimeoutError) as error:
                    found.failures.append((str(topic), str(error) or type(error).__name__))
                    return None
                finally:
                    advance(1)

        try:
            facts = await asyncio.gather(*(one(topic) for topic in topics))
        finally:
            await cold.close()
    found.topics = [each for each in facts if each is not None]
    for each in found.topics:
        found.failures += [(each.state.name, error) for error in each.state.times.troubles[:1]]
    if any(each.seen is None for each in found.topics) and admin_url:
        found.notes.append("Of some topics no broker answered for stats.")
    return found


async def _defaults(brokers: Brokers | None, notes: list[str]) -> Keeping:
    if brokers is not None:
        try:
            return await brokers.defaults()
        except ServiceNotReady as error:
            notes.append(f"Brokers' defaults of retention and TTL are not known: {error}")
            return Keeping()
    notes.append(
        "No broker was asked (--admin-url): who holds unacknowledged messages is not known, and "
        "where neither topic nor namespace set retention and TTL, none is assumed."
    )
    return Keeping()


class _Asking:
    """The questions to one topic."""

    def __init__(
        self,
        log: Log,
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

    async def topic(self, topic: TopicName) -> TopicFacts | None:
        """None where it was deleted meanwhile."""
        keeping = await self._policies.of(topic)
        state = await topic_state(self._log.context, topic, keeping, self._cold)
        if state is None:
            return None
        at_ms = self._clock.now_ms()
        acks = {each.name: each.acks for each in state.subscriptions}
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
