"""The settings of load balancing between brokers: moving and splitting bundles.

Only the brokers of a cluster have them. A setting that Pulsar 4.2 also has, has its key, and its
default unless the description says otherwise.
"""

from dataclasses import dataclass

from magnetar.settings.choices import SplitAlgorithm
from magnetar.settings.field import UNLIMITED, SettingsError, setting


@dataclass(frozen=True, kw_only=True)
class BalanceSettings:
    """When bundles move between brokers, and when they are split."""

    load_balancer: bool = setting(
        True,
        "Whether the leading broker moves and splits bundles.",
        group="Load balance",
        pulsar="loadBalancerEnabled",
    )
    shedding: bool = setting(
        True,
        "Whether bundles move from busy brokers to idle ones.",
        group="Load balance",
        pulsar="loadBalancerSheddingEnabled",
    )
    failure_domains: bool = setting(
        True,
        "Whether namespaces of an anti-affinity group are spread over failure domains (Pulsar: "
        "false).",
        group="Load balance",
        pulsar="failureDomainsEnabled",
    )
    shedding_interval_minutes: int = setting(
        1,
        "How often the leader compares the brokers' loads.",
        group="Load balance",
        unit="min",
        within=(1, 1_440),
        pulsar="loadBalancerSheddingIntervalMinutes",
    )
    shedding_grace_minutes: int = setting(
        30,
        "How long a bundle that moved stays on its broker, whatever the loads.",
        group="Load balance",
        unit="min",
        within=(0, 10_080),
        pulsar="loadBalancerSheddingGracePeriodMinutes",
    )
    shedding_return_minutes: int = setting(
        120,
        "How long a bundle does not move back to its former broker.",
        group="Load balance",
        unit="min",
        within=(0, 10_080),
    )
    shedding_rounds: int = setting(
        5,
        "Rounds in a row for which a broker must be overloaded before bundles move (Pulsar: 3).",
        group="Load balance",
        unit="rounds",
        within=(1, 60),
        pulsar="loadBalancerSheddingConditionHitCountThreshold",
    )
    shedding_high_percent: int = setting(
        15,
        "Percentage points of load above the brokers' mean at which a broker sheds bundles "
        "(Pulsar, by another measure of load: 10).",
        group="Load balance",
        unit="%",
        within=(1, 100),
        pulsar="loadBalancerBrokerThresholdShedderPercentage",
    )
    shedding_low_percent: int = setting(
        5,
        "Percentage points of load above the mean at which a broker stops shedding.",
        group="Load balance",
        unit="%",
        within=(0, 100),
    )
    overloaded_percent: int = setting(
        85,
        "Load at which a broker sheds bundles whatever the mean, and gets no more bundles.",
        group="Load balance",
        unit="%",
        within=(1, 100),
        pulsar="loadBalancerBrokerOverloadedThresholdPercentage",
    )
    moves_per_round_max: int = setting(
        10,
        "Maximum number of bundles that a round moves.",
        group="Load balance",
        unit="bundles",
        within=(1, 1_000),
    )
    moves_per_hour_max: int = setting(
        120,
        "Maximum number of bundles that move within an hour.",
        group="Load balance",
        unit="bundles",
        within=(1, 100_000),
    )
    load_report_change_percent: int = setting(
        10,
        "Change of load after which a broker reports it again.",
        group="Load balance",
        unit="%",
        within=(1, 100),
        pulsar="loadBalancerReportUpdateThresholdPercentage",
    )
    load_report_interval_min_ms: int = setting(
        5_000,
        "Minimum interval between two load reports of a broker.",
        group="Load balance",
        unit="ms",
        within=(100, 600_000),
        pulsar="loadBalancerReportUpdateMinIntervalMillis",
    )
    load_report_interval_max_minutes: int = setting(
        15,
        "Maximum interval between two load reports of a broker.",
        group="Load balance",
        unit="min",
        within=(1, 1_440),
        pulsar="loadBalancerReportUpdateMaxIntervalMinutes",
    )
    load_report_bundles_max: int = setting(
        200,
        "Maximum number of bundles in a load report, the busiest first (Pulsar: 10).",
        group="Load balance",
        unit="bundles",
        within=(1, 2_000),
        pulsar="loadBalancerMaxNumberOfBundlesInBundleLoadReport",
    )
    # Bundles
    auto_split: bool = setting(
        True,
        "Whether bundles that exceed the limits below are split.",
        group="Bundles",
        pulsar="loadBalancerAutoBundleSplitEnabled",
    )
    auto_split_unload: bool = setting(
        False,
        "Whether the parts of a split bundle are unloaded at once, so that brokers claim them "
        "again; otherwise shedding moves them (Pulsar: true).",
        group="Bundles",
        pulsar="loadBalancerAutoUnloadSplitBundlesEnabled",
    )
    split_algorithm: SplitAlgorithm = setting(
        "range_equally_divide",
        "How the split point of a bundle is chosen in an automatic split.",
        group="Bundles",
        pulsar="defaultNamespaceBundleSplitAlgorithm",
    )
    split_rounds: int = setting(
        3,
        "Rounds in a row for which a bundle must exceed a limit before it is split.",
        group="Bundles",
        unit="rounds",
        within=(1, 60),
        pulsar="loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
    )
    splits_per_round_max: int = setting(
        10,
        "Maximum number of bundles that a round splits.",
        group="Bundles",
        unit="bundles",
        within=(1, 1_000),
        pulsar="loadBalancerMaxNumberOfBundlesToSplitPerCycle",
    )
    namespace_bundles_max: int = setting(
        128,
        "Number of bundles of a namespace from which none is split automatically.",
        group="Bundles",
        unit="bundles",
        within=(1, 65_536),
        pulsar="loadBalancerNamespaceMaximumBundles",
    )
    bundle_topics_max: int = setting(
        1_000,
        "Number of topics above which a bundle is split.",
        group="Bundles",
        unit="topics",
        within=(1, UNLIMITED),
        pulsar="loadBalancerNamespaceBundleMaxTopics",
    )
    bundle_sessions_max: int = setting(
        1_000,
        "Number of producers and consumers above which a bundle is split.",
        group="Bundles",
        unit="clients",
        within=(1, UNLIMITED),
        pulsar="loadBalancerNamespaceBundleMaxSessions",
    )
    bundle_message_rate_max: int = setting(
        30_000,
        "Messages per second, in and out, above which a bundle is split.",
        group="Bundles",
        unit="messages/s",
        within=(1, UNLIMITED),
        pulsar="loadBalancerNamespaceBundleMaxMsgRate",
    )
    bundle_bandwidth_max_mb: int = setting(
        100,
        "Bytes per second, in and out, above which a bundle is split.",
        group="Bundles",
        unit="MiB/s",
        within=(1, UNLIMITED >> 20),
        pulsar="loadBalancerNamespaceBundleMaxBandwidthMbytes",
    )

    def __post_init__(self) -> None:
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
