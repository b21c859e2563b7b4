"""The tasks of a run: the work, and beside it the report, until one of several ends."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from magnetar.core.tasks import TaskScope


async def until_over(
    works: Sequence[Coroutine[Any, Any, None]],
    report: Coroutine[Any, Any, None],
    *,
    duration_s: float = 0.0,
    first: bool = False,
) -> bool:
    """Runs works until all have ended, or with `first` until one has; returns whether they have.

    They have not if the duration (0: none) or a signal ended the run. A failure of a work ends the
    run and is raised, and so is one of the report: no process reads its lines any more.
    """
    async with TaskScope("perf") as tasks:
        working = {tasks.start(work, f"work {index}") for index, work in enumerate(works)}
        reporting = tasks.start(report, "report")
        try:
            async with asyncio.timeout(duration_s or None):
                while working:
                    done, _ = await asyncio.wait(
                        {*working, reporting}, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        task.result()
                    working -= done
                    if first:
                        break
        except TimeoutError as error:
            if type(error) is not TimeoutError:
                raise  # one of the client
            return False
        except asyncio.CancelledError:
            return False  # a signal: the run ends with its totals
    return True
