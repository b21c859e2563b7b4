"""A client cannot push the records of others out of the audit log."""

import json
from dataclasses import replace
from pathlib import Path

from magnetar.core.clock import SystemClock
from magnetar.observe import audit_budget
from magnetar.observe.audit import AuditLog, AuditRecord
from magnetar.observe.audit_budget import (
    PERIOD_S,
    SENDER_RECORDS_MAX,
    STRANGERS_RECORDS_MAX,
    AuditBudget,
)

STRANGER = AuditRecord("CONNECT", "", "", "", "10.0.0.1", allowed=False, reason="wrong")
DENIED = AuditRecord("DELETE /admin/v2/tenants/t", "t", "shop", "", "10.0.0.1", allowed=False)
CHANGE = AuditRecord("PUT /admin/v2/tenants/t", "", "admin", "", "10.0.0.1", allowed=True)
MANY = 10 * SENDER_RECORDS_MAX


def taken(budget: AuditBudget, record: AuditRecord, times: int = MANY, now_s: float = 0.0) -> int:
    return sum(budget.admits(record, now_s) for _ in range(times))


def test_one_address_of_strangers_gets_a_few_records_and_others_continue() -> None:
    budget = AuditBudget()
    assert taken(budget, STRANGER) == SENDER_RECORDS_MAX
    assert taken(budget, replace(STRANGER, address="10.0.0.2"), 1) == 1
    assert taken(budget, DENIED, 1) == 1
    assert budget.withheld == MANY - SENDER_RECORDS_MAX


def test_many_addresses_of_strangers_share_a_bound() -> None:
    budget = AuditBudget()
    strangers = (replace(STRANGER, address=f"10.0.{n >> 8}.{n & 255}") for n in range(5_000))
    assert sum(budget.admits(each, 0.0) for each in strangers) == STRANGERS_RECORDS_MAX
    assert taken(budget, DENIED, 1) == 1


def test_addresses_of_one_network_of_ipv6_count_as_one() -> None:
    budget = AuditBudget()
    strangers = (replace(STRANGER, address=f"2001:db8::{n:x}") for n in range(1, MANY))
    assert sum(budget.admits(each, 0.0) for each in strangers) == SENDER_RECORDS_MAX


def test_a_role_that_connects_or_is_refused_again_and_again_is_bounded() -> None:
    budget = AuditBudget()
    connected = replace(STRANGER, role="shop", allowed=True)
    assert taken(budget, DENIED) == SENDER_RECORDS_MAX
    assert taken(budget, connected) == 0
    assert taken(budget, replace(connected, address="10.0.0.2"), 1) == 1


def test_permitted_changes_are_always_recorded() -> None:
    budget = AuditBudget()
    taken(budget, replace(CHANGE, allowed=False))
    assert taken(budget, CHANGE) == MANY


def test_the_next_period_starts_anew_and_reports_the_number() -> None:
    budget = AuditBudget()
    taken(budget, STRANGER)
    assert budget.take_due(PERIOD_S / 2) == 0
    assert taken(budget, STRANGER, now_s=PERIOD_S) == SENDER_RECORDS_MAX
    assert budget.take_due(PERIOD_S) == MANY - SENDER_RECORDS_MAX
    assert budget.take_due(PERIOD_S) == 0


def test_the_number_of_senders_is_bounded() -> None:
    budget = AuditBudget()
    most = audit_budget.SENDERS_MAX
    senders = (replace(DENIED, role=f"role-{n}") for n in range(most + 10))
    assert sum(budget.admits(each, 0.0) for each in senders) == most


async def test_the_log_keeps_earlier_records_and_reports_the_rest(tmp_path: Path) -> None:
    clock = SteppedClock()
    audit = AuditLog(tmp_path / "audit.log", 64 * 1024, 2, clock)
    audit.start()
    audit.record(CHANGE)
    for _ in range(5_000):
        audit.record(STRANGER)
    clock.later_s += PERIOD_S
    audit.record(CHANGE)
    await audit.stop()
    lines = lines_of(tmp_path)
    changes = [line for line in lines if line.get("role") == "admin"]
    assert len(changes) == 2
    assert lines[-1]["withheld"] == 5_000 - SENDER_RECORDS_MAX
    assert audit.dropped == 0


def lines_of(folder: Path) -> list[dict[str, object]]:
    (file,) = folder.iterdir()  # it was not rotated
    return [json.loads(line) for line in file.read_text().splitlines()]


class SteppedClock(SystemClock):
    """A clock that a test can advance."""

    later_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_s
