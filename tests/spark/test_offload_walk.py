"""An offload executes the modules that docs/understand/offload.md links, in its order."""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from tests.spark.job_stage import JobCluster
from tests.spark.offload_stage import TO_FILES, counts, offload, on_this_process, only_the_first

import magnetar_spark
from magnetar import jobs as shared
from magnetar import offload as cold_data
from magnetar_spark.jobs.offload import job

PAGE: Final = Path(__file__).parents[2] / "docs" / "understand" / "offload.md"
SPARK: Final = Path(magnetar_spark.__file__).parent
PACKAGES: Final = (SPARK, *(Path(str(each.__file__)).parent for each in (shared, cold_data)))
OTHER_KINDS: Final = ("jobs/backlog/__init__.py", "jobs/compact/__init__.py")
"""`jobs/main.py` lets every kind add its flags."""
_LINK: Final = re.compile(r"\]\(([^)#]+\.py)\)")
_ROW: Final = re.compile(r"^\| (\d+) \| \[`[^]]+\]\(([^)]+)\)", re.MULTILINE)
_IN_ORDER: Final = (1, 2, 3, 4, 5, 6, 8, 9)
"""Rows that run in sequence. 7 also parses flags; 10 to 14 are steps of 9; 15 and 16 follow."""


def linked(targets: list[str]) -> list[Path]:
    return [(PAGE.parent / target).resolve() for target in targets]


OnCall = Callable[[FrameType, str, Any], None]


@contextmanager
def executed(files: list[Path]) -> Iterator[OnCall]:
    """Adds each module of the packages to `files` when its first function is called.

    Yields the profile function, for threads that exist already.
    """
    names: set[str] = set()

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in names:
            names.add(name)
            path = Path(name)
            if any(path.is_relative_to(package) for package in PACKAGES):
                files.append(path)

    threading.setprofile(on_call)
    sys.setprofile(on_call)
    try:
        yield on_call
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_an_offload_executes_the_modules_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on_this_process(monkeypatch, JobCluster(monkeypatch, tmp_path, capsys))
    only_the_first(cluster)
    files: list[Path] = []
    write = job._write_by_spark
    with executed(files) as on_call:

        def profiled(*arguments: Any) -> Any:
            sys.setprofile(on_call)  # in a thread of the loop's pool, which may be an older one
            try:
                return write(*arguments)
            finally:
                sys.setprofile(None)

        monkeypatch.setattr(job, "_write_by_spark", profiled)
        summary = offload(cluster, *TO_FILES)
    assert counts(summary, "ledgersOffloaded", "failed") == [1, 0]
    page = PAGE.read_text()
    others = {SPARK / name for name in OTHER_KINDS} | {SPARK / "jobs/offload/__init__.py"}
    assert set(files) - others <= set(linked(_LINK.findall(page)))
    rows = {int(number): path for number, path in _ROW.findall(page)}
    steps = linked([rows[number] for number in sorted(rows)])
    assert set(steps) <= set(files)
    order = [files.index(steps[number - 1]) for number in _IN_ORDER]
    assert order == sorted(order)
