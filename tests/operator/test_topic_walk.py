"""A Topic's reconcile executes exactly the modules that docs/understand/operator.md lists.

A reader who follows the first reconcile of a Topic forward reaches the files in the page's order.
"""

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.operator.resource_stage import Stage, resource_stage

import magnetar_operator
from magnetar_operator.engine.queue import ReconcileQueue

PACKAGE: Final = Path(magnetar_operator.__file__).parent
PAGE: Final = Path(__file__).parents[2] / "docs" / "understand" / "operator.md"
FILES_MAX: Final = 12
RECONCILE_S_MAX: Final = 30.0
RESYNC_S: Final = 3_600.0
_ROW: Final = re.compile(r"^\| \d+ \| \[`([a-z_/]+\.py)`\]", re.MULTILINE)
_LINK: Final = re.compile(r"\[`([a-z_/]+\.py)`\]")


def documented() -> tuple[list[str], set[str]]:
    """The files of the walk, in order, and those that it ends at or uses for names and types."""
    page = PAGE.read_text()
    start = page.index("## A Topic's reconcile")
    section = page[start : page.index("A deleted Topic", start)]
    walk = _ROW.findall(section)
    return walk, set(_LINK.findall(section)) - set(walk)


@contextmanager
def executed(files: list[str]) -> Iterator[None]:
    """Adds each module of the operator to `files` when its first function is called."""
    names: dict[str, str | None] = {}

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name not in names:
            path = Path(name)
            inside = path.is_relative_to(PACKAGE)
            names[name] = str(path.relative_to(PACKAGE)) if inside else None
            if inside:
                files.append(str(path.relative_to(PACKAGE)))

    sys.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(None)


async def _reconciled(on: Stage, name: str, spec: dict[str, Any]) -> list[str]:
    """Reconciles a Topic as a watch event makes the operator do it; returns the modules."""
    on.apply("Topic", name, spec)
    done, files = asyncio.Event(), list[str]()

    async def reconcile(obj: Any) -> float | None:
        try:
            return await on.reconciler.reconcile(obj)
        finally:
            done.set()

    queue = ReconcileQueue(workers=1, resync_s=RESYNC_S)
    queue.register("Topic", reconcile)
    with executed(files):
        queue.start()
        queue.received("Topic", {"type": "ADDED", "object": on.get("Topic", name)})
        async with asyncio.timeout(RECONCILE_S_MAX):
            await done.wait()
    await queue.stop()
    return files


async def test_a_topic_is_reconciled_by_the_modules_of_the_page() -> None:
    walk, others = documented()
    assert len(walk) <= FILES_MAX
    async with resource_stage() as on:
        spec = {"name": "t1/n1/a", "partitions": 2, "policies": {"messageTTL": "1h"}}
        created = await _reconciled(on, "a", spec)
        assert on.reason("Topic", "a") == "AsSpecified", on.condition("Topic", "a")
        await on.say("POST", "/persistent/t1/n1/a/messageTTL", 60)
        repaired = await _reconciled(on, "a", {**spec, "partitions": 3})
        assert on.notes("DriftRepaired")
    assert walk == [file for file in created if file in walk]
    assert {*created, *repaired} == {*walk, *others}
