"""Progress bars of `ledger check` and `bookie decommission`, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def counting(text: str) -> Iterator[Callable[[int], None]]:
    """Shows a counter of ledgers and bytes; call the result with the bytes of each ledger."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[ledgers]} " + text),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None, ledgers=0)
        count = 0

        def advance(size: int) -> None:
            nonlocal count
            count += 1
            bar.update(task, advance=size, ledgers=count)

        yield advance


@contextmanager
def draining(text: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Shows a bar of `total` ledgers; call the result with the drained ones and a remark."""
    columns = (
        SpinnerColumn(),
        TextColumn(text),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} ledgers"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total, remark="")

        def show(done: int, remark: str) -> None:
            bar.update(task, completed=done, remark=remark)

        yield show
