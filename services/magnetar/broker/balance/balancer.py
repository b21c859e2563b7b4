"""The leader's loop: reads the load reports, plans, logs the decisions, and issues the orders.

Every broker runs the loop; only the leader's does anything. A round that fails (the store is
unavailable) is skipped. A broker that has lost the leadership cannot write any more.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from magnetar.broker.balance.decision_log import DecisionLog
from magnetar.broker.balance.leader import Leadership
from magnetar.broker.balance.model import Decision, LoadReport, Move, Order, Round, Split
from magnetar.broker.balance.orders import OrderIssuer
from magnetar.broker.balance.planner import Planner, PlannerSettings, PlanRules
from magnetar.broker.balance.quotas import QUOTAS, fixed_loads
from magnetar.broker.catalog.resources import Resources
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, NotFound
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName
from magnetar.metadata.store import MetadataStore, StoreClosed

ROUND_TIMEOUT_S: Final = 60.0
RETRY_S: Final = 5.0
COUNTED_NAMESPACES_MAX: Final = 100
"""Namespaces whose bundles are counted in a round: only those with bundles to split."""

log = get_logger("magnetar.balance")


@dataclass(slots=True)
class Counts:
    """Counters of this process's leadership, for /metrics."""

    bundles_split: int = 0
    bundles_unloaded: int = 0
    brokers_unloaded: int = 0


class Balancer:
    """Runs the rounds of balancing while this broker leads.

    `reports` and `living` return the current load reports and the brokers that may get bundles;
    `allowed` those of some brokers that may own a bundle.
    """

    def __init__(
        self,
        store: MetadataStore,
        leadership: Leadership,
        resources: Resources,
        clock: Clock,
        settings: PlannerSettings,
        *,
        broker_id: str,
        interval_s: float,
        unload_parts: bool,
        reports: Callable[[], Iterable[LoadReport]],
        living: Callable[[], Collection[str]],
        allowed: Callable[[str, Sequence[str]], Collection[str]],
    ) -> None:
        self._leadership = leadership
        self._resources = resources
        self._clock = clock
        self._settings = settings
        self._broker_id = broker_id
        self._interval_s = interval_s
        self._unload_parts = unload_parts
        self._reports = reports
        self._living = living
        self._allowed = allowed
        self._orders = OrderIssuer(store, leadership, clock)
        self._planner: Planner | None = None
        self.decisions = DecisionLog(store)
        self.counts = Counts()

    def set_settings(
        self, settings: PlannerSettings, *, interval_s: float, unload_parts: bool
    ) -> None:
        """Replaces the settings; the next round plans by them, as the first of a new count."""
        self._settings = settings
        self._interval_s = interval_s
        self._unload_parts = unload_parts
        self._planner = None

    async def run(self) -> None:
        """Runs rounds while this broker leads, until the store is closed."""
        while True:
            if not self._leadership.leading:
                self._planner = None
                await self._leadership.wait_change()
                continue
            pause_s = self._interval_s
            try:
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    await self.round()
            except StoreClosed:
                return
            except (MagnetarError, TimeoutError) as error:
                log.info("round of balancing skipped", error=str(error))
                pause_s = min(RETRY_S, self._interval_s)
            except Exception:
                # The leader keeps its key: if the loop ended here, no broker would balance.
                log.exception("round of balancing skipped")
            await asyncio.sleep(pause_s)

    async def round(self) -> Round:
        """Runs one round; raises ServiceNotReady if this broker does not lead."""
        check = self._leadership.check()
        if self._planner is None:
            self._planner = Planner(self._settings, await self.decisions.begin())
        planner, living = self._planner, set(self._living())
        reports = list(self._reports())
        finished, under_way = await self._orders.collect({r.broker_id for r in reports} | living)
        counts = await self._bundle_counts(planner.hot_namespaces(reports))
        decisions = planner.plan(
            reports,
            living,
            self._clock.now_ms(),
            counts,
            {order.bundle for order in under_way},
            await self._rules(),
        )
        loads = planner.loads or {report.broker_id: report.cpu for report in reports}
        this_round = Round(
            sequence=0,
            at_ms=self._clock.now_ms(),
            leader=self._broker_id,
            loads=loads,
            decisions=tuple(decisions),
            results=tuple(map(_result_text, finished)),
        )
        # Logged before the orders are issued: an order without a log entry cannot exist, so the
        # next leader knows of every move.
        await self.decisions.append(this_round, check)
        self._count(decisions)
        await self._orders.issue(decisions, unload_parts=self._unload_parts)
        for decision in decisions:
            if isinstance(decision, Move | Split):
                log.info("decided", bundle=decision.bundle, why=decision.why)
        return this_round

    async def dry_run(self) -> list[Decision]:
        """Returns what this broker would decide if the current loads lasted. Changes nothing."""
        reports = list(self._reports())
        now = replace(self._settings, rounds=1, split=replace(self._settings.split, rounds=1))
        planner = Planner(now, await DecisionLog(self.decisions.store).begin())
        counts = await self._bundle_counts(planner.hot_namespaces(reports))
        rules = await self._rules()
        return planner.plan(reports, set(self._living()), self._clock.now_ms(), counts, rules=rules)

    async def _rules(self) -> PlanRules:
        return PlanRules(fixed_loads(await QUOTAS.read(self.decisions.store)), self._allowed)

    async def _bundle_counts(self, namespaces: Iterable[str]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for name in sorted(namespaces)[:COUNTED_NAMESPACES_MAX]:
            try:
                policies = await self._resources.policies(NamespaceName.parse(name))
            except NotFound:
                continue
            counts[name] = len(policies["bundles"]["boundaries"]) - 1
        return counts

    def _count(self, decisions: Iterable[Decision]) -> None:
        sources = set()
        for decision in decisions:
            if isinstance(decision, Move):
                self.counts.bundles_unloaded += 1
                sources.add(decision.source)
            elif isinstance(decision, Split):
                self.counts.bundles_split += 1
        self.counts.brokers_unloaded += len(sources)


def _result_text(order: Order) -> str:
    text = f"{order.kind} of {order.bundle}: {order.state}"
    return f"{text} ({order.result})" if order.result else text
