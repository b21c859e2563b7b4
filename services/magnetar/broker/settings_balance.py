"""The settings of a broker that shares its work with others: what moves bundles, and what splits.

Only a broker of a cluster has them; names and defaults are Pulsar 4.2's where it has the same.
"""

from dataclasses import dataclass
from typing import Literal

from magnetar.broker.setting import UNLIMITED, SettingsError, setting
from magnetar.broker.settings import BrokerSettings

SplitAlgorithm = Literal[
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedBrokerSettings(BrokerSettings):
    """A broker among others."""

    # Load balance
    load_balancer: bool = setting(
        True,
        "Whether the leading broker looks for bundles to move and to split.",
        group="Load balance",
        pulsar="loadBalancerEnabled",
    )
    shedding: bool = setting(
        True,
        "Whether bundles move from busy brokers to idle ones.",
        group="Load balance",
        pulsar="loadBalancerSheddingEnabled",
    )
    shedding_interval_minutes: int = setting(
        1,
        "How often the leader compares the brokers' loads.",
        group="Load balance",
        unit="min",
        low=1,
        high=1_440,
        pulsar="loadBalancerSheddingIntervalMinutes",
    )
    shedding_grace_minutes: int = setting(
        30,
        "How long a bundle that moved stays where it is, whatever the loads.",
        group="Load balance",
        unit="min",
        low=0,
        high=10_080,
        pulsar="loadBalancerSheddingGracePeriodMinutes",
    )
    shedding_return_minutes: int = setting(
        120,
        "How long a bundle does not move back to the broker that it came from.",
        group="Load balance",
        unit="min",
        low=0,
        high=10_080,
    )
    shedding_rounds: int = setting(
        5,
        "Rounds in a row for which a broker must be too busy before anything moves (Pulsar: 3).",
        group="Load balance",
        unit="rounds",
        low=1,
        high=60,
        pulsar="loadBalancerSheddingConditionHitCountThreshold",
    )
    shedding_high_percent: int = setting(
        15,
        "Points of load above the mean of the brokers at which a broker begins to be relieved "
        "(Pulsar, of other loads: 10).",
        group="Load balance",
        unit="%",
        low=1,
        high=100,
        pulsar="loadBalancerBrokerThresholdShedderPercentage",
    )
    shedding_low_percent: int = setting(
        5,
        "Points of load above the mean at which relieving a broker ends.",
        group="Load balance",
        unit="%",
        low=0,
        high=100,
    )
    overloaded_percent: int = setting(
        85,
        "Load at which a broker is relieved whatever the mean, and takes no more bundles.",
        group="Load balance",
        unit="%",
        low=1,
        high=100,
        pulsar="loadBalancerBrokerOverloadedThresholdPercentage",
    )
    moves_per_round_max: int = setting(
        10,
        "Most bundles that one round moves.",
        group="Load balance",
        unit="bundles",
        low=1,
        high=1_000,
    )
    moves_per_hour_max: int = setting(
        120,
        "Most bundles that are moved within an hour.",
        group="Load balance",
        unit="bundles",
        low=1,
        high=100_000,
    )
    load_report_change_percent: int = setting(
        10,
        "Change of load after which a broker reports it anew.",
        group="Load balance",
        unit="%",
        low=1,
        high=100,
        pulsar="loadBalancerReportUpdateThresholdPercentage",
    )
    load_report_interval_min_ms: int = setting(
        5_000,
        "No broker reports its load more often than this.",
        group="Load balance",
        unit="ms",
        low=100,
        high=600_000,
        pulsar="loadBalancerReportUpdateMinIntervalMillis",
    )
    load_report_interval_max_minutes: int = setting(
        15,
        "A broker reports its load at least this often.",
        group="Load balance",
        unit="min",
        low=1,
        high=1_440,
        pulsar="loadBalancerReportUpdateMaxIntervalMinutes",
    )
    load_report_bundles_max: int = setting(
        200,
        "Most bundles that a load report names, the busiest first (Pulsar: 10).",
        group="Load balance",
        unit="bundles",
        low=1,
        high=2_000,
        pulsar="loadBalancerMaxNumberOfBundlesInBundleLoadReport",
    )
    # Bundles
    auto_split: bool = setting(
        True,
        "Whether bundles that grow too busy are split.",
        group="Bundles",
        pulsar="loadBalancerAutoBundleSplitEnabled",
    )
    auto_split_unload: bool = setting(
        False,
        "Whether the parts of a bundle that was split are given up at once, to be placed anew; "
        "otherwise they move when that pays (Pulsar: true).",
        group="Bundles",
        pulsar="loadBalancerAutoUnloadSplitBundlesEnabled",
    )
    split_algorithm: SplitAlgorithm = setting(
        "range_equally_divide",
        "Where bundles are cut when they are split automatically.",
        group="Bundles",
        pulsar="defaultNamespaceBundleSplitAlgorithm",
    )
    split_rounds: int = setting(
        3,
        "Rounds in a row for which a bundle must be too busy before it is split.",
        group="Bundles",
        unit="rounds",
        low=1,
        high=60,
        pulsar="loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
    )
    splits_per_round_max: int = setting(
        10,
        "Most bundles that one round splits.",
        group="Bundles",
        unit="bundles",
        low=1,
        high=1_000,
        pulsar="loadBalancerMaxNumberOfBundlesToSplitPerCycle",
    )
    namespace_bundles_max: int = setting(
        128,
        "Bundles of a namespace beyond which none is split automatically.",
        group="Bundles",
        unit="bundles",
        low=1,
        high=65_536,
        pulsar="loadBalancerNamespaceMaximumBundles",
    )
    bundle_topics_max: int = setting(
        1_000,
        "Topics above which a bundle is split.",
        group="Bundles",
        unit="topics",
        low=1,
        high=UNLIMITED,
        pulsar="loadBalancerNamespaceBundleMaxTopics",
    )
    bundle_sessions_max: int = setting(
        1_000,
        "Producers and consumers above which a bundle is split.",
        group="Bundles",
        unit="clients",
        low=1,
        high=UNLIMITED,
        pulsar="loadBalancerNamespaceBundleMaxSessions",
    )
    bundle_message_rate_max: int = setting(
        30_000,
        "Messages per second, in and out, above which a bundle is split.",
        group="Bundles",
        unit="messages/s",
        low=1,
        high=UNLIMITED,
        pulsar="loadBalancerNamespaceBundleMaxMsgRate",
    )
    bundle_bandwidth_max_mb: int = setting(
        100,
        "Bytes per second, in and out, above which a bundle is split.",
        group="Bundles",
        unit="MiB/s",
        low=1,
        high=UNLIMITED >> 20,
        pulsar="loadBalancerNamespaceBundleMaxBandwidthMbytes",
    )

    def __post_init__(self) -> None:
        # By name: super() does not find its way in a dataclass with slots.
        BrokerSettings.__post_init__(self)
        if self.shedding_low_percent >= self.shedding_high_percent:
            raise SettingsError(
                f"shedding_low_percent is {self.shedding_low_percent}, not less than "
                f"shedding_high_percent, {self.shedding_high_percent}"
            )
        if self.shedding_return_minutes < self.shedding_grace_minutes:
            raise SettingsError(
                f"shedding_return_minutes is {self.shedding_return_minutes}, less than "
                f"shedding_grace_minutes, {self.shedding_grace_minutes}"
            )
