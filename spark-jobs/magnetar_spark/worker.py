"""What a Python worker of Spark's does once, for all tasks that it gets.

Workers collect garbage in full after each task, which costs 20 to 50 ms for what is imported alone.
So the first task of a worker takes what is there then out of the collector's sight.
"""

import gc
from functools import cache

from pyspark import TaskContext


def keep_imports() -> None:
    """See the module's text; nothing where this process is not Spark's."""
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    """Once in a process."""
    gc.freeze()
