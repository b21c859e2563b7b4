"""Which tests should notice a mistake in a package, and the score that the package must keep."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MAGNETAR: Final = "services/magnetar"
OPERATOR: Final = "operator/magnetar_operator"
SPARK: Final = "spark-jobs/magnetar_spark"
OPERATOR_PLANS: Final = (
    "tests/operator/test_autoscale.py",
    "tests/operator/test_bookie_decisions.py",
    "tests/operator/test_cluster_actions.py",
    "tests/operator/test_cluster_answers.py",
    "tests/operator/test_cluster_applies.py",
    "tests/operator/test_cluster_conditions.py",
    "tests/operator/test_cluster_files.py",
    "tests/operator/test_cluster_gates.py",
    "tests/operator/test_cluster_reconcile.py",
    "tests/operator/test_cluster_manifests.py",
    "tests/operator/test_cluster_plan.py",
    "tests/operator/test_cluster_scaling.py",
    "tests/operator/test_cluster_status.py",
    "tests/operator/test_cluster_upgrades.py",
    "tests/operator/test_crds_policies.py",
    "tests/operator/test_crds_values.py",
    "tests/operator/test_gate.py",
    "tests/operator/test_kube_client.py",
    "tests/operator/test_lease.py",
    "tests/operator/test_metrics_answers.py",
    "tests/operator/test_metrics_serving.py",
    "tests/operator/test_objects_kept.py",
    "tests/operator/test_plan_documents.py",
    "tests/operator/test_resources_admin_client.py",
    "tests/operator/test_resources_as_shown.py",
    "tests/operator/test_resources_backlog.py",
    "tests/operator/test_resources_effects.py",
    "tests/operator/test_resources_ending.py",
    "tests/operator/test_resources_reconcile.py",
    "tests/operator/test_resources_lists.py",
    "tests/operator/test_resources_memory.py",
    "tests/operator/test_resources_moved.py",
    "tests/operator/test_resources_names.py",
    "tests/operator/test_resources_order.py",
    "tests/operator/test_resources_places.py",
    "tests/operator/test_resources_plan.py",
    "tests/operator/test_resources_plan_files.py",
    "tests/operator/test_resources_refusals.py",
    "tests/operator/test_resources_tables.py",
    "tests/operator/test_resources_waiting.py",
    "tests/operator/test_sparkjob_conditions.py",
    "tests/operator/test_sparkjob_decisions.py",
    "tests/operator/test_sparkjob_reconcile.py",
    "tests/operator/test_sparkjobs_plan.py",
    "tests/operator/test_sparkjobs_tables.py",
    "tests/operator/test_spec_options.py",
    "tests/operator/test_volume_plan.py",
    "tests/operator/test_queue.py",
)


@dataclass(frozen=True, slots=True)
class Suite:
    """A package of the campaign."""

    name: str
    sources: tuple[str, ...]
    """Folders and files below the repository's root."""
    tests: tuple[str, ...]
    score_min: float

    def files(self) -> Iterator[Path]:
        for source in self.sources:
            path = ROOT / source
            yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


BROKER_QUICK: Final = (
    "tests/unit/broker/test_producers.py",
    "tests/unit/broker/test_session_attach.py",
    "tests/unit/broker/test_session_commands.py",
    "tests/unit/broker/test_refused.py",
    "tests/unit/broker/test_unfinished.py",
)
"""Without those that measure memory or wait for a slow peer: they take minutes for few lines."""

REST_OF_A_CLUSTER: Final = (
    "tests/integration/test_cluster_deletions.py",
    "tests/integration/test_cluster_policies.py",
    "tests/integration/test_cluster_rest.py",
    "tests/integration/test_cluster_rest_options.py",
    "tests/integration/test_drain.py",
    "tests/integration/test_effect_rest.py",
)
"""Brokers of a cluster in one process: they run what a broker alone never reaches."""


def _broker(name: str, *tests: str, score_min: float = 0.90) -> Suite:
    return Suite(name, (f"{MAGNETAR}/broker/{name}",), tests, score_min)


SUITES: Final = (
    Suite("wire", (f"{MAGNETAR}/wire",), ("tests/unit/wire",), 0.90),
    Suite(
        "bookie",
        (f"{MAGNETAR}/bookie",),
        ("tests/unit/bookie", "tests/unit/bookie/net", "tests/contract/test_bookie_contract.py"),
        0.95,
    ),
    Suite(
        "metadata",
        (f"{MAGNETAR}/metadata",),
        ("tests/unit/metadata", "tests/contract/metadata"),
        0.90,
    ),
    Suite(
        "ledger",
        (f"{MAGNETAR}/ledger",),
        ("tests/unit/ledger", "tests/unit/ledger/test_registered_bookies.py"),
        0.95,
    ),
    Suite(
        "managed_ledger",
        (f"{MAGNETAR}/managed_ledger",),
        (
            "tests/unit/managed_ledger",
            "tests/unit/offload/test_cold_copies.py",
            "tests/unit/offload/test_cold_reads.py",
            "tests/unit/offload/test_cold_search.py",
        ),
        0.95,
    ),
    Suite("autorecovery", (f"{MAGNETAR}/autorecovery",), ("tests/unit/autorecovery",), 0.95),
    Suite("offload_verify", (f"{MAGNETAR}/offload/verify.py",), ("tests/unit/offload",), 0.95),
    Suite(
        "offload",
        (
            f"{MAGNETAR}/offload",
            f"{MAGNETAR}/broker/cold/offload.py",
            f"{MAGNETAR}/broker/cold/offload_state.py",
        ),
        (
            "tests/unit/offload",
            "tests/unit/broker/test_offload_requests.py",
            "tests/unit/broker/test_offload_state.py",
            "tests/unit/broker/test_offloading.py",
            "tests/spark/test_job_failures.py",
            "tests/spark/test_job_races.py",
            "tests/spark/test_offload_commit.py",
            "tests/spark/test_offload_works.py",
        ),
        0.90,
    ),
    Suite(
        "compaction",
        (
            f"{MAGNETAR}/compaction",
            f"{MAGNETAR}/broker/cold/compaction.py",
            f"{MAGNETAR}/broker/cold/compaction_state.py",
        ),
        (
            "tests/unit/compaction",
            "tests/unit/broker/test_compaction_state.py",
            "tests/unit/broker/dispatch/test_compacted.py",
            "tests/unit/broker/lifecycle/test_compacted_topics.py",
        ),
        0.90,
    ),
    _broker(
        "dispatch",
        "tests/unit/broker/dispatch",
        "tests/unit/broker/subscription",
        "tests/unit/broker/rates/test_dispatch_rate.py",
    ),
    Suite(
        "ownership",
        (f"{MAGNETAR}/broker/ownership",),
        ("tests/unit/broker/ownership", "tests/unit/broker/balance"),
        0.95,
    ),
    _broker(
        "subscription",
        "tests/unit/broker/subscription",
        "tests/unit/broker/dispatch",
        "tests/unit/broker/topic",
    ),
    _broker(
        "topic",
        "tests/unit/broker/topic",
        "tests/unit/broker/test_topic_numbers.py",
        "tests/unit/broker/subscription",
        "tests/unit/broker/lifecycle",
        "tests/unit/broker/rates",
        *BROKER_QUICK,
    ),
    _broker("lifecycle", "tests/unit/broker/lifecycle"),
    _broker("rates", "tests/unit/broker/rates"),
    _broker(
        "policies",
        "tests/unit/policies",
        "tests/unit/broker/policies",
        # Of the admin REST only what is about policies: the rest takes minutes for few lines.
        "tests/unit/admin/test_deletion.py",
        "tests/unit/admin/test_deletion_races.py",
        "tests/unit/admin/test_permissions.py",
        "tests/unit/admin/test_policies.py",
        "tests/unit/admin/test_policies_as_pulsar.py",
        "tests/unit/admin/test_policies_of_clients.py",
    ),
    _broker(
        "session",
        "tests/unit/broker/session",
        "tests/unit/broker/test_budget.py",
        "tests/unit/broker/test_topic_watchers.py",
        *BROKER_QUICK,
    ),
    Suite(
        "admin",
        (
            f"{MAGNETAR}/admin/deletion.py",
            f"{MAGNETAR}/admin/cluster",
            f"{MAGNETAR}/admin/bulk.py",
            f"{MAGNETAR}/admin/shield.py",
        ),
        (
            "tests/unit/admin",
            "tests/unit/broker/ownership",
            # Brokers in one process, with REST on sockets: quick enough for a campaign.
            "tests/integration/test_cluster_deletions.py",
            "tests/integration/test_cluster_rest.py",
            "tests/integration/test_cluster_rest_options.py",
            "tests/integration/test_drain.py",
        ),
        0.90,
    ),
    Suite(
        "rest",
        (f"{MAGNETAR}/admin/routers", f"{MAGNETAR}/admin/stats"),
        ("tests/unit/admin", *REST_OF_A_CLUSTER),
        0.90,
    ),
    Suite(
        "operator_gates",
        tuple(
            f"{OPERATOR}/cluster/{module}.py"
            for module in (
                "bookie_drain",
                "gate",
                "plan",
                "rollout",
                "scale_down",
                "scale_up",
                "volume_replacement",
            )
        ),
        tuple(each for each in OPERATOR_PLANS if "_resources_" not in each),
        0.95,
    ),
    Suite(
        "operator",
        tuple(
            f"{OPERATOR}/{part}"
            for part in (
                "admin",
                "autoscale",
                "catalog",
                "cluster",
                "engine",
                "kube",
                "plan_manifests.py",
                "sparkjobs",
            )
        ),
        OPERATOR_PLANS,
        0.90,
    ),
    Suite(
        "spark",
        (f"{SPARK}/jobs", f"{SPARK}/filters.py", f"{MAGNETAR}/jobs"),
        (
            "tests/spark/test_backlog_bounds.py",
            "tests/spark/test_backlog_brokers.py",
            "tests/spark/test_backlog_charts.py",
            "tests/spark/test_backlog_durable_end.py",
            "tests/spark/test_backlog_entries.py",
            "tests/spark/test_backlog_findings.py",
            "tests/spark/test_backlog_output.py",
            "tests/spark/test_backlog_page.py",
            "tests/spark/test_backlog_report.py",
            "tests/spark/test_backlog_rules.py",
            "tests/spark/test_backlog_run.py",
            "tests/spark/test_backlog_sampling.py",
            "tests/spark/test_backlog_scan.py",
            "tests/spark/test_backlog_states.py",
            "tests/spark/test_backlog_sums.py",
            "tests/spark/test_backlog_tables.py",
            "tests/spark/test_compact_between.py",
            "tests/spark/test_compact_choices.py",
            "tests/spark/test_compact_due.py",
            "tests/spark/test_compact_entries.py",
            "tests/spark/test_compact_leftovers.py",
            "tests/spark/test_compact_messages.py",
            "tests/spark/test_compact_run.py",
            "tests/spark/test_compact_status.py",
            "tests/spark/test_compact_swap.py",
            "tests/spark/test_filters.py",
            "tests/spark/test_job_failures.py",
            "tests/spark/test_job_flags.py",
            "tests/spark/test_job_frame.py",
            "tests/spark/test_job_leases.py",
            "tests/spark/test_job_races.py",
            "tests/spark/test_offload_between.py",
            "tests/spark/test_offload_commit.py",
            "tests/spark/test_offload_planning.py",
            "tests/spark/test_offload_release.py",
            "tests/spark/test_offload_run.py",
            "tests/spark/test_offload_works.py",
            "tests/spark/test_store_flag.py",
        ),
        0.90,
    ),
    Suite(
        "spark_stream",
        (f"{SPARK}/planner.py", f"{SPARK}/stream_offsets.py"),
        (
            "tests/spark/test_batch_plan.py",
            "tests/spark/test_ledger_ends.py",
            "tests/spark/test_stream_plan.py",
        ),
        0.90,
    ),
)


def suite_of(name: str) -> Suite:
    """Raises `KeyError` with the known names."""
    for suite in SUITES:
        if suite.name == name:
            return suite
    raise KeyError(f"no package {name!r}; there are {', '.join(each.name for each in SUITES)}")
