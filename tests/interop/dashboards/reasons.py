"""Why some expressions of public dashboards have no data on Magnetar.

A reason holds for all expressions that contain its pattern. The test fails if such an expression
has data, so that a reason which no longer holds is found, and if another expression has none.
"""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Reason:
    """Expressions that match `pattern` have no data, or only under conditions, for `text`."""

    pattern: str
    text: str
    board: str = ""
    """Only on this board."""
    conditional: bool = False
    """They may have data: this machine, or the time that the test takes, decides."""


REASONS: Final = (
    # Mistakes of the boards: Pulsar has no such series either.
    Reason(r"\$\$instance", "The board writes `$$instance`, which matches nothing."),
    Reason(r'instance=~"instance"', "The board has left out the `$` of `$instance`."),
    Reason(
        r'pulsar_producers_count\{cluster=~"\$cluster", job=~"broker", namespace=~"\$namespace"\}',
        "The board's `$namespace` has no tenant, and this query does not add it.",
        board="lhotari/messaging",
    ),
    Reason(
        r"pulsar_entry_size_overflow",
        "Pulsar's name is `pulsar_entry_size_le_overflow`, which Magnetar has.",
    ),
    Reason(r"pulsar_storage_read_latency", "Pulsar 4.2 has no such metric."),
    Reason(r"pulsar_instance_publish_latency", "A name of a distribution; not in Pulsar 4.2."),
    # Parts that Magnetar does not have.
    Reason(r"jvm_|directMemory", "Magnetar has no JVM; `process_…` has CPU and memory."),
    Reason(r"caffeine_cache_", "Caches of a Java library; Magnetar's are in `pulsar_ml_cache_…`."),
    Reason(r'job="zookeeper"|zookeeper', "Magnetar has no ZooKeeper; etcd has its own metrics."),
    Reason(r'job="proxy"|\.\*proxy', "Magnetar has no proxy."),
    Reason(r"pulsar_replication_", "Magnetar does not replicate to other clusters."),
    Reason(
        r"pulsar_sunit_state_chn_|_breakdown_total|pulsar_lb_resource_usage",
        "Internals of Pulsar's extensible load manager, which is built differently.",
    ),
    Reason(
        r"JOURNAL_(FORCE_WRITE|CB)_QUEUE_SIZE",
        "A journal has one queue, `bookie_journal_JOURNAL_QUEUE_SIZE`.",
    ),
    Reason(
        r"bookkeeper_server_thread_executor_queue", "A bookie serves requests on an event loop."
    ),
    Reason(
        r"bookie_entries_count", "A bookie knows no number of entries without reading its index."
    ),
    Reason(r"bookie_readahead_batch_count", "A bookie reads blocks ahead, not entries."),
    Reason(
        r"pulsar_ledgeroffloader_",
        "Offload is a job; brokers count reads of offloaded ledgers, for all namespaces together.",
    ),
    # What the machine exports.
    Reason(r"\bnode_", "Prometheus' node exporter has it, which is not part of Magnetar."),
    Reason(r"\bcontainer_", "cAdvisor has it, which is not part of Magnetar."),
    # Conditions.
    Reason(r"bookie_SERVER_STATUS\{[^}]*\} == 0", "Empty while all bookies are writable."),
    Reason(
        r"pulsar_lb_bandwidth_",
        "Only where Linux knows the speed of the network interface.",
        conditional=True,
    ),
    Reason(
        r"pulsar_ml_cache_hits_rate.*/",
        "A ratio of rates of the last whole minute: from a broker's second minute on.",
        conditional=True,
    ),
    Reason(
        r"bookie_read_cache_misses.*/",
        "A ratio of reads that pass the write cache, which a bookie flushes within a minute.",
        conditional=True,
    ),
)
ABSENT_BOARDS: Final = {
    "streamnative/functions": (5, "Functions"),
    "streamnative/jvm": (4, "Java's virtual machine"),
    "streamnative/kop": (28, "Kafka on Pulsar"),
    "streamnative/logs": (2, "Loki, a store of logs, and the JVM"),
    "streamnative/node": (26, "Prometheus' node exporter"),
    "streamnative/proxy": (12, "The proxy"),
    "streamnative/pulsar_detector": (3, "A program of a distribution that sends test messages"),
    "streamnative/zookeeper": (15, "ZooKeeper"),
    "streamnative/zookeeper-3.6": (99, "ZooKeeper"),
    "lhotari/connector-sink": (6, "Connectors"),
    "lhotari/connector-source": (6, "Connectors"),
    "lhotari/functions": (11, "Functions"),
    "lhotari/jvm": (16, "Java's virtual machine"),
    "lhotari/node": (26, "Prometheus' node exporter"),
    "lhotari/proxy": (12, "The proxy"),
    "lhotari/zookeeper": (99, "ZooKeeper"),
}
"""Boards of parts that Magnetar does not have: their panels with a query, and the part."""


def reason_of(board: str, expression: str) -> Reason | None:
    """Returns why an expression of a board has no data; None if it must have some."""
    for reason in REASONS:
        if reason.board in ("", board) and re.search(reason.pattern, expression):
            return reason
    return None
