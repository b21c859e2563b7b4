"""Decides which bundles to split: those above one of Pulsar's limits for some rounds. Pure.

A bundle with a single topic is never split, because the topic would stay as busy as it is. Nor is a
bundle of a namespace that has its maximum number of bundles.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from magnetar.broker.balance.model import BundleLoad, LoadReport, Split, namespace_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """The limits of bundles; see `magnetar.settings.balance`."""

    enabled: bool = True
    algorithm: str = "range_equally_divide"
    rounds: int = 3
    splits_per_round_max: int = 10
    namespace_bundles_max: int = 128
    topics_max: int = 1_000
    sessions_max: int = 1_000
    message_rate_max: float = 30_000.0
    bandwidth_max: float = 100.0 * (1 << 20)


class SplitPlanner:
    """Counts for how many rounds each bundle has exceeded a limit, and plans splits."""

    def __init__(self, settings: SplitSettings) -> None:
        self._settings = settings
        self._rounds: dict[str, int] = {}

    def plan(
        self,
        reports: Iterable[LoadReport],
        bundle_counts: Mapping[str, int],
        busy: Collection[str],
    ) -> list[Split]:
        """Returns this round's splits; skips `busy` bundles. `bundle_counts` is by namespace."""
        settings = self._settings
        if not settings.enabled:
            return []
        hot = {
            bundle.bundle: (report.broker_id, bundle, exceeded)
            for report in reports
            for bundle in report.bundles
            if (exceeded := self._exceeded(bundle)) is not None
        }
        self._rounds = {name: self._rounds.get(name, 0) + 1 for name in hot}
        splits: list[Split] = []
        counts = dict(bundle_counts)
        for name, (owner, _, (unit, value, limit)) in sorted(hot.items()):
            namespace = namespace_of(name)
            count = counts.get(namespace)
            if len(splits) >= settings.splits_per_round_max:
                break
            if name in busy or self._rounds[name] < settings.rounds:
                continue
            if count is None or count >= settings.namespace_bundles_max:
                continue
            rounds = self._rounds[name]
            why = f"it has {value:,.0f} {unit}, more than {limit:,.0f}, for {rounds} rounds"
            numbers = {"value": round(value, 1), "limit": limit, "bundles": float(count)}
            splits.append(Split(name, owner, settings.algorithm, why, numbers))
            counts[namespace] = count + 1
            del self._rounds[name]
        return splits

    def hot_namespaces(self, reports: Iterable[LoadReport]) -> set[str]:
        """Returns the namespaces of bundles that exceed a limit now."""
        if not self._settings.enabled:
            return set()
        return {
            namespace_of(bundle.bundle)
            for report in reports
            for bundle in report.bundles
            if self._exceeded(bundle) is not None
        }

    def _exceeded(self, bundle: BundleLoad) -> tuple[str, float, float] | None:
        """Returns (unit, value, limit) of an exceeded limit; None if a split would not help."""
        settings = self._settings
        if bundle.topics < 2:
            return None
        for unit, value, limit in (
            ("topics", bundle.topics, settings.topics_max),
            ("producers and consumers", bundle.sessions, settings.sessions_max),
            ("messages per second", bundle.msg_rate, settings.message_rate_max),
            ("bytes per second", bundle.throughput, settings.bandwidth_max),
        ):
            if value > limit:
                return unit, float(value), float(limit)
        return None
