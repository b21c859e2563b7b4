"""The audit log: its lines, rotation, and what happens when the disk cannot keep up."""

import asyncio
import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.core.clock import SystemClock
from magnetar.observe.audit import (
    AUDIT_PENDING_MAX,
    AUDIT_TEXT_CHARS_MAX,
    AuditLog,
    AuditRecord,
)

ALLOWED = AuditRecord("PUT /admin/v2/tenants/t", "", "admin", "", "127.0.0.1", allowed=True)


def opened(path: Path, file_bytes_max: int = 1 << 26, files_max: int = 3) -> AuditLog:
    audit = AuditLog(path, file_bytes_max, files_max, SystemClock())
    audit.start()
    return audit


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def targets_in(folder: Path) -> dict[str, object]:
    """The target of the first line of each file."""
    return {path.name: lines_of(path)[0]["target"] for path in folder.iterdir()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - files have no events
            await asyncio.sleep(0.01)


async def test_a_record_is_one_line_that_only_the_owner_reads(tmp_path: Path) -> None:
    audit = opened(tmp_path / "audit.log")
    audit.record(ALLOWED)
    denied = replace(ALLOWED, original="alice", allowed=False, reason="not an admin\nof t")
    audit.record(denied)
    await audit.stop()
    first, second = lines_of(tmp_path / "audit.log")
    assert isinstance(first.pop("time_ms"), int)
    assert first == {
        "role": "admin", "action": "PUT /admin/v2/tenants/t", "target": "",
        "address": "127.0.0.1", "allowed": True,
    }  # fmt: skip
    assert (second["original"], second["reason"]) == ("alice", "not an admin\nof t")
    assert second["allowed"] is False
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


async def test_stopping_writes_every_record_that_waits(tmp_path: Path) -> None:
    audit = opened(tmp_path / "audit.log")
    for number in range(1_000):
        audit.record(replace(ALLOWED, target=str(number)))
    await audit.stop()
    assert [line["target"] for line in lines_of(tmp_path / "audit.log")] == [
        str(number) for number in range(1_000)
    ]
    assert (audit.written, audit.dropped) == (1_000, 0)


async def test_full_files_are_rotated_and_the_oldest_removed(tmp_path: Path) -> None:
    audit = opened(tmp_path / "audit.log", file_bytes_max=100)
    for number in range(5):
        audit.record(replace(ALLOWED, target=str(number)))
        await until(lambda expected=number + 1: audit.written == expected)  # type: ignore[misc]
    await audit.stop()
    assert targets_in(tmp_path) == {"audit.log.1": "4", "audit.log.2": "3"}


async def test_one_file_alone_is_emptied_when_full(tmp_path: Path) -> None:
    audit = opened(tmp_path / "audit.log", file_bytes_max=100, files_max=1)
    audit.record(ALLOWED)
    await until(lambda: audit.written == 1)
    await audit.stop()
    assert targets_in(tmp_path) == {}


async def test_a_flood_is_bounded_and_the_log_says_what_it_lost(tmp_path: Path) -> None:
    audit = opened(tmp_path / "audit.log")
    for _ in range(AUDIT_PENDING_MAX + 5):
        audit.record(ALLOWED)
    assert audit.dropped == 5
    await audit.stop()
    lines = lines_of(tmp_path / "audit.log")
    assert len(lines) == AUDIT_PENDING_MAX + 1
    assert lines[-1]["dropped"] == 5


async def test_a_disk_that_fails_stops_nothing_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    audit = opened(folder / "audit.log")
    (folder / "audit.log").unlink()
    folder.rmdir()
    for lost in (1, 2):
        audit.record(ALLOWED)
        await until(lambda expected=lost: audit.dropped == expected)  # type: ignore[misc]
    folder.mkdir()
    audit.record(ALLOWED)
    await audit.stop()
    assert lines_of(folder / "audit.log")[-1]["dropped"] == 2
    assert caplog.text.count("audit log not written") == 1


async def test_a_path_that_cannot_be_written_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        opened(tmp_path / "missing" / "audit.log")


async def test_long_names_of_clients_are_cut(tmp_path: Path) -> None:
    audit = opened(tmp_path / "audit.log")
    audit.record(replace(ALLOWED, role="x" * 100_000, target="y" * 100_000))
    await audit.stop()
    (line,) = lines_of(tmp_path / "audit.log")
    assert len(str(line["role"])) == len(str(line["target"])) == AUDIT_TEXT_CHARS_MAX
