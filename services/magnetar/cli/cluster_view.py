"""Shows the members of a local cluster: a table on a terminal, plain columns elsewhere."""

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.cluster.local.status import MemberStatus, Observer

if TYPE_CHECKING:
    from rich.table import Table

    from magnetar.cluster.local.cluster import LocalCluster

COLUMNS: Final = (
    "member", "state", "address", "http", "pid", "up", "cpu", "memory", "holds"
)  # fmt: skip
_COLOURS: Final = {"ready": "green", "not ready": "yellow", "paused": "yellow", "stopped": "red"}


def show_until(cluster: "LocalCluster", stopping: threading.Event, refresh_s: float) -> None:
    """Shows the members until `stopping` is set; without a terminal, prints a line per change."""
    observer = Observer(cluster)
    if not sys.stdout.isatty():
        _print_changes(observer, stopping, refresh_s)
        return
    from rich.live import Live

    with Live(table(observer.observe()), auto_refresh=False, transient=True) as live:
        while not stopping.wait(refresh_s):
            live.update(table(observer.observe()), refresh=True)


def _print_changes(observer: Observer, stopping: threading.Event, refresh_s: float) -> None:
    former: dict[str, str] = {}
    while True:
        states = {row.name: row.state for row in observer.observe()}
        for name in former.keys() - states.keys():
            print(f"{name}: removed", flush=True)
        for name, state in states.items():
            if former.get(name) != state:
                print(f"{name}: {state}", flush=True)
        former = states
        if stopping.wait(refresh_s):
            return


def print_rows(rows: Sequence[MemberStatus]) -> None:
    """Prints the members once."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(table(rows))
        return
    lines = [COLUMNS, *(cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


def table(rows: Sequence[MemberStatus]) -> "Table":
    """The members as a table of rich, with the sums of CPU and memory."""
    from rich.table import Table

    members = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        members.add_row(*cells(row), style=_COLOURS[row.state] if row.state != "ready" else None)
    cpu = sum(row.cpu_percent or 0.0 for row in rows)
    memory = sum(row.resident_bytes or 0 for row in rows)
    members.add_section()
    members.add_row("all", "", "", "", "", "", f"{cpu:.0f} %", _mib(memory), "")
    return members


def cells(row: MemberStatus) -> tuple[str, ...]:
    """The columns of a member."""
    state = f"{row.state}: {row.reason}" if row.reason else row.state
    return (
        row.name,
        state,
        row.address,
        row.http_url.rpartition(":")[2],
        str(row.pid or ""),
        "" if row.uptime_s is None else _duration(row.uptime_s),
        "" if row.cpu_percent is None else f"{row.cpu_percent:.0f} %",
        "" if row.resident_bytes is None else _mib(row.resident_bytes),
        holds_text(row),
    )


def holds_text(row: MemberStatus) -> str:
    """The bundles, ledgers or tasks of a member, and whether its disk or ledgers have problems."""
    held = row.holds
    names: tuple[str, ...]
    match row.role:
        case "broker":
            names = ("bundles", "topics", "connections")
        case "bookie":
            names = ("ledgers", "entries_added")
        case _:
            names = ("ledgers_waiting", "ledgers_copied")
    parts = [f"{held[name]} {name.replace('_', ' ')}" for name in names if name in held]
    used, total = held.get("disk_used_bytes"), held.get("disk_bytes_total")
    if isinstance(used, int) and isinstance(total, int) and total:
        parts.append(f"disk {used / total:.0%}")
    if held.get("ledgers_degraded"):
        parts.append(f"{held['ledgers_degraded']} ledgers short of copies")
    if held.get("read_only_reason"):
        parts.append(f"read-only: {held['read_only_reason']}")
    return ", ".join(parts)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"
