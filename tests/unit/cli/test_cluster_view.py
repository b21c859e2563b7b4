"""The table of the members of a local cluster."""

import pytest

from magnetar.cli.cluster_view import COLUMNS, cells, holds_text, print_rows
from magnetar.cluster.local.status import MemberStatus

MIB = 1 << 20


def row(role: str = "broker", state: str = "ready", **values: object) -> MemberStatus:
    return MemberStatus(
        **{  # type: ignore[arg-type]
            "name": f"{role}-1",
            "role": role,
            "address": "h:1",
            "http_url": "http://h:2",
            "state": state,
            "reason": "",
            **values,
        }
    )


def test_a_row_leaves_out_unknown_values() -> None:
    assert cells(row(state="stopped")) == (
        *("broker-1", "stopped", "h:1", "2", "", "", "", "", ""),
    )
    full = row(pid=7, uptime_s=130.0, cpu_percent=3.4, resident_bytes=80 * MIB)
    assert cells(full)[4:8] == ("7", "2 min", "3 %", "80 MiB")
    assert cells(row(state="not ready", reason="waits"))[1] == "not ready: waits"


@pytest.mark.parametrize(
    ("role", "holds", "shown"),
    [
        ("broker", {"bundles": 2, "topics": 5, "connections": 1}, "2 bundles, 5 topics, 1 conn"),
        ("bookie", {"ledgers": 3, "disk_used_bytes": 1, "disk_bytes_total": 4}, "disk 25%"),
        ("bookie", {"ledgers": 3, "read_only_reason": "full"}, "read-only: full"),
        ("autorecovery", {"ledgers_waiting": 9}, "9 ledgers waiting"),
        ("etcd", {}, ""),
    ],
)
def test_the_work_of_each_role_is_shown(role: str, holds: dict[str, object], shown: str) -> None:
    assert shown in holds_text(row(role, holds=holds))


def test_without_a_terminal_rows_are_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([row(), row("bookie", "paused")])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == list(COLUMNS)
    assert [line.split()[1] for line in lines] == ["ready", "paused"]
