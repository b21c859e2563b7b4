"""When a bundle is split: Pulsar's limits, each exceeded for some rounds in a row. Pure.

A bundle with a single topic is never split: the topic would stay as busy as it is. A namespace that
has its greatest number of bundles keeps them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from magnetar.broker.balance.model import BundleLoad, LoadReport, Split, namespace_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """See `settings_balance.py`."""

    enabled: bool = True
    algorithm: str = "range_equally_divide"
    rounds: int = 3
    splits_per_round_max: int = 10
    namespace_bundles_max: int = 128
    topics_max: int = 1_000
    sessions_max: int = 1_000
    message_rate_max: float = 30_000.0
    bandwidth_max: float = 100.0 * (1 << 20)


class Splitting:
    """Counts, from round to round, how long a bundle has been too busy."""

    def __init__(self, settings: SplitSettings) -> None:
        self._settings = settings
        self._rounds: dict[str, int] = {}

    def plan(
        self,
        reports: Iterable[LoadReport],
        bundle_counts: Mapping[str, int],
        busy: Collection[str],
    ) -> list[Split]:
        """The splits of this round; `bundle_counts` by namespace, `busy` bundles are left alone."""
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
        for name, (owner, _, (what, value, limit)) in sorted(hot.items()):
            namespace = namespace_of(name)
            count = counts.get(namespace)
            if len(splits) >= settings.splits_per_round_max:
                break
            if name in busy or self._rounds[name] < settings.rounds:
                continue
            if count is None or count >= settings.namespace_bundles_max:
                continue
            rounds = self._rounds[name]
            why = f"it has {value:,.0f} {what}, more than {limit:,.0f}, for {rounds} rounds"
            numbers = {"value": round(value, 1), "limit": limit, "bundles": float(count)}
            splits.append(Split(name, owner, settings.algorithm, why, numbers))
            counts[namespace] = count + 1
            del self._rounds[name]
        return splits

    def hot_namespaces(self, reports: Iterable[LoadReport]) -> set[str]:
        """The namespaces of bundles that exceed a limit now."""
        if not self._settings.enabled:
            return set()
        return {
            namespace_of(bundle.bundle)
            for report in reports
            for bundle in report.bundles
            if self._exceeded(bundle) is not None
        }

    def _exceeded(self, bundle: BundleLoad) -> tuple[str, float, float] | None:
        """Which limit, by how much; None where none is, or a split would not help."""
        settings = self._settings
        if bundle.topics < 2:
            return None
        for what, value, limit in (
            ("topics", bundle.topics, settings.topics_max),
            ("producers and consumers", bundle.sessions, settings.sessions_max),
            ("messages per second", bundle.msg_rate, settings.message_rate_max),
            ("bytes per second", bundle.throughput, settings.bandwidth_max),
        ):
            if value > limit:
                return what, float(value), float(limit)
        return None
