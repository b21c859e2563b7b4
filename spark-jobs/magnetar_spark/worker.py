"""Setup of a Spark Python worker, once for all its tasks.

A worker runs a full garbage collection after each task, which takes 20 to 50 ms for the imported
modules alone. So its first task freezes what exists by then, which hides it from the collector.
"""

import gc
from functools import cache

from pyspark import TaskContext


def keep_imports() -> None:
    """Freezes the objects that exist now, once; does nothing outside a Spark worker."""
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    gc.freeze()
