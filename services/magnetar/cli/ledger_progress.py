"""How far a check or a decommission is, on a terminal."""

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
    """Counts ledgers and their bytes, however many there are."""
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
    """Shows how much of `total` ledgers is done, and a remark."""
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
