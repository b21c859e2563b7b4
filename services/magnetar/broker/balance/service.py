"""Load balancing as one object that a broker starts, and that look-ups and REST use.

Every broker reports its load, follows all reports (to place bundles), executes orders, and
campaigns for the leadership. If `load_balancer` is off, bundles are still placed and orders still
executed, but no broker decides on moves or splits.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.balance.balancer import Balancer
from magnetar.broker.balance.leader import Leadership
from magnetar.broker.balance.load import LoadReporter, Process, ReportSettings, Serving
from magnetar.broker.balance.model import REPORTS_PREFIX, LoadReport, decode_report
from magnetar.broker.balance.orders import OrderTaker, Owner
from magnetar.broker.balance.planner import PlannerSettings
from magnetar.broker.balance.split_decision import SplitSettings
from magnetar.broker.catalog.resources import Resources
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.follower import Follower
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore, Record
from magnetar.settings.balance import BalanceSettings

MINUTE_S: Final = 60.0
MINUTE_MS: Final = 60_000

log = get_logger("magnetar.balance")


class Reports:
    """The newest load report of every living broker, by a watch."""

    def __init__(self, store: MetadataStore) -> None:
        self._by_broker: dict[str, LoadReport] = {}
        self._following = Follower(store, REPORTS_PREFIX, self._changed)

    async def run(self) -> None:
        """Follows the reports until the store is closed."""
        await self._following.run()

    def of(self, broker_id: str) -> LoadReport | None:
        """Returns a broker's newest report, None if there is none."""
        return self._by_broker.get(broker_id)

    def all(self) -> list[LoadReport]:
        """Returns the newest reports of all brokers."""
        return list(self._by_broker.values())

    def _changed(self, key: str, record: Record | None) -> None:
        broker_id = key.removeprefix(REPORTS_PREFIX)
        if record is None:
            self._by_broker.pop(broker_id, None)
            return
        try:
            self._by_broker[broker_id] = decode_report(key, record.value)
        except MetadataError as error:
            log.warning("unreadable report ignored", broker=broker_id, error=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBroker:
    """This broker, as its load balancing sees it."""

    broker_id: str
    http_url: str
    serving: Serving
    owner: Owner
    living: Callable[[], Collection[str]]
    """Returns the brokers that may receive bundles: registered and not draining."""
    allowed: Callable[[str, Sequence[str]], Collection[str]] = lambda _bundle, brokers: brokers
    """Returns the brokers that may own a bundle, of those given."""


class Balance:
    """The load balancing of one broker. Create it before the session starts, as a listener.

    It follows `reports`, by which a `Placement` chooses the owners of bundles.
    """

    def __init__(
        self,
        settings: BalanceSettings,
        store: MetadataStore,
        session: MetadataSession,
        clock: Clock,
        broker: LocalBroker,
        reports: Reports,
        *,
        rng: random.Random | None = None,
        process: Process | None = None,
        interval_s: float | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._settings = settings
        self._tasks = TaskSet("balance")
        self.reports = reports
        self.reporter = LoadReporter(
            broker.serving, store, session, clock, report_settings(settings), process
        )
        self.leadership = Leadership(store, session, broker.broker_id, broker.http_url, rng)
        self.taker = OrderTaker(store, broker.broker_id, broker.owner, self._tasks)
        self.balancer = Balancer(
            store,
            self.leadership,
            Resources(store),
            clock,
            planner_settings(settings),
            broker_id=broker.broker_id,
            interval_s=interval_s or settings.shedding_interval_minutes * MINUTE_S,
            unload_parts=settings.auto_split_unload,
            reports=self.reports.all,
            living=broker.living,
            allowed=broker.allowed,
        )
        session.add_listener(self.reporter)
        session.add_listener(self.leadership)

    def start(self) -> None:
        """Starts the tasks, once the broker serves clients."""
        self._tasks.start(self.reports.run(), "reports")
        self._tasks.start(self.reporter.run(), "report")
        self._tasks.start(self.taker.run(), "orders")
        self._tasks.start(self.leadership.run(), "leader")
        if self._settings.load_balancer:
            self._tasks.start(self.balancer.run(), "balancer")

    def set_settings(self, settings: BalanceSettings) -> None:
        """Applies changed settings of planning from the next round on."""
        self.balancer.set_settings(
            planner_settings(settings),
            interval_s=settings.shedding_interval_minutes * MINUTE_S,
            unload_parts=settings.auto_split_unload,
        )

    async def stop(self) -> None:
        """Stops the tasks; leadership and report end with the session's lease. Idempotent."""
        await self._tasks.stop()


def planner_settings(settings: BalanceSettings) -> PlannerSettings:
    """Converts the settings to the planner's units."""
    return PlannerSettings(
        shedding=settings.shedding,
        rounds=settings.shedding_rounds,
        high=settings.shedding_high_percent / 100,
        low=settings.shedding_low_percent / 100,
        overloaded=settings.overloaded_percent / 100,
        grace_ms=settings.shedding_grace_minutes * MINUTE_MS,
        return_ms=settings.shedding_return_minutes * MINUTE_MS,
        moves_per_round_max=settings.moves_per_round_max,
        moves_per_hour_max=settings.moves_per_hour_max,
        split=SplitSettings(
            enabled=settings.auto_split,
            algorithm=settings.split_algorithm,
            rounds=settings.split_rounds,
            splits_per_round_max=settings.splits_per_round_max,
            namespace_bundles_max=settings.namespace_bundles_max,
            topics_max=settings.bundle_topics_max,
            sessions_max=settings.bundle_sessions_max,
            message_rate_max=float(settings.bundle_message_rate_max),
            bandwidth_max=float(settings.bundle_bandwidth_max_mb << 20),
        ),
    )


def report_settings(settings: BalanceSettings) -> ReportSettings:
    """Converts the settings to the reporter's units."""
    return ReportSettings(
        change_min=settings.load_report_change_percent / 100,
        interval_min_s=settings.load_report_interval_min_ms / 1000,
        interval_max_s=settings.load_report_interval_max_minutes * MINUTE_S,
        bundles_max=settings.load_report_bundles_max,
    )
