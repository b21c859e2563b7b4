"""Resource quotas: which hold, and what a fixed one changes in the planner."""

import pytest

from magnetar.broker.balance.model import BundleLoad, LoadReport, Move
from magnetar.broker.balance.planner import Planner, PlannerSettings, PlanRules
from magnetar.broker.balance.quotas import (
    NO_QUOTAS,
    QUOTA_DEFAULT,
    QUOTAS_MAX,
    Quotas,
    ResourceQuota,
    fixed_loads,
    with_bundle,
    with_default,
    without_bundle,
    without_namespace,
)
from magnetar.core.errors import PreconditionFailed

FIXED = ResourceQuota(msg_rate_in=7.0, bandwidth_out=9.0, dynamic=False)


def moved(rules: PlanRules) -> list[str]:
    """The bundles that leave a broker with four equally busy ones for an idle broker."""
    bundles = tuple(BundleLoad(f"t/n/{name}", topics=1, msg_rate_in=1_000.0) for name in "abcd")
    reports = [
        LoadReport(
            broker_id="b0", started_ms=0, updated_ms=0, cpu=0.6, msg_rate_in=4_000.0,
            bundle_count=4, bundles=bundles,
        ),
        LoadReport(broker_id="b1", started_ms=0, updated_ms=0),
    ]  # fmt: skip
    planner = Planner(PlannerSettings(rounds=1))
    decisions = planner.plan(reports, {"b0", "b1"}, 1_800_000_000_000, rules=rules)
    return [each.bundle for each in decisions if isinstance(each, Move)]


def test_a_fixed_quota_replaces_what_was_measured_in_the_choice_of_bundles() -> None:
    assert moved(PlanRules()) == ["t/n/a"]
    light = ResourceQuota(msg_rate_in=1.0, dynamic=False)
    quotas = with_bundle(None, "t/n/a", light, {"t/n/a": None})
    assert moved(PlanRules(fixed_loads(quotas))) == ["t/n/b"]
    dynamic = with_bundle(None, "t/n/a", ResourceQuota(msg_rate_in=1.0), {"t/n/a": None})
    assert moved(PlanRules(fixed_loads(dynamic))) == ["t/n/a"]
    none_worth_moving = with_default(None, ResourceQuota(dynamic=False))
    assert moved(PlanRules(fixed_loads(none_worth_moving))) == []


def test_a_bundle_has_its_own_quota_else_the_default() -> None:
    assert NO_QUOTAS.of("t/n/a") == QUOTA_DEFAULT
    quotas = with_default(None, FIXED)
    assert quotas.of("t/n/a") == FIXED
    own = ResourceQuota(memory=1.0)
    quotas = with_bundle(quotas, "t/n/a", own, {"t/n/a": None})
    assert (quotas.of("t/n/a"), quotas.of("t/n/b")) == (own, FIXED)
    assert without_bundle(quotas, "t/n/a").of("t/n/a") == FIXED
    load = fixed_loads(quotas)
    assert load("t/n/a") is None
    assert load("t/n/b") == BundleLoad("t/n/b", msg_rate_in=7.0, msg_throughput_out=9.0)
    assert fixed_loads(None)("t/n/a") is None


def test_quotas_of_bundles_that_are_gone_are_dropped() -> None:
    quotas = with_bundle(None, "t/n/a", FIXED, {"t/n/a": None})
    quotas = with_bundle(quotas, "t/other/a", FIXED, {"t/other/a": None})
    split = with_bundle(quotas, "t/n/a1", FIXED, {"t/n/a1": None, "t/n/a2": None})
    assert sorted(split.bundles) == ["t/n/a1", "t/other/a"]
    assert without_namespace(None, "t/n") is None
    assert without_namespace(quotas, "t/x") is None
    left = without_namespace(quotas, "t/n")
    assert left is not None
    assert sorted(left.bundles) == ["t/other/a"]


def test_the_number_of_quotas_is_bounded() -> None:
    full = Quotas(1, None, {f"t/n{number}/a": FIXED for number in range(QUOTAS_MAX)})
    assert len(with_bundle(full, "t/n0/a", FIXED, {"t/n0/a": None}).bundles) == QUOTAS_MAX
    with pytest.raises(PreconditionFailed, match="reset one"):
        with_bundle(full, "t/x/a", FIXED, {"t/x/a": None})
    with pytest.raises(PreconditionFailed, match="memory"):
        ResourceQuota(memory=-0.5).check()
    with pytest.raises(PreconditionFailed, match="msgRateIn"):
        ResourceQuota(msg_rate_in=float("nan")).check()
    ResourceQuota().check()
