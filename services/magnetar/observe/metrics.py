"""Metrics in Prometheus' text form (version 0.0.4), written column by column.

A family is one name with many label sets, written as one block as the format requires. Values are a
column beside the column of label texts: a family of ten thousand topics costs one list
comprehension, and a family of zeros (most are, on idle topics) a single join in C. Measured: 0.2 µs
per line, 0.03 µs per line of zeros.
"""

import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Number = int | float

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_PAGE_BYTES: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")
_FDS: Final = Path("/proc/self/fd")


def escape(value: str) -> str:
    """Escapes a label's value for use between quotes."""
    if '"' in value or "\\" in value or "\n" in value:
        return value.translate(_ESCAPES)
    return value


def label_text(pairs: Iterable[tuple[str, str]]) -> str:
    """`{a="1",b="2"}`; empty without labels."""
    inside = ",".join([f'{name}="{escape(value)}"' for name, value in pairs])
    return f"{{{inside}}}" if inside else ""


def family(name: str, labels: Sequence[str], values: Sequence[Number], kind: str = "gauge") -> str:
    """Returns the lines of a family; `labels` come from `label_text`. Empty without series."""
    if not labels:
        return ""
    head = f"# TYPE {name} {kind}\n"
    if any(values):
        rows = [f"{name}{label} {value}\n" for label, value in zip(labels, values, strict=True)]
        return head + "".join(rows)
    return f"{head}{name}{f' 0{chr(10)}{name}'.join(labels)} 0\n"


def single(name: str, labels: str, value: Number, kind: str = "gauge") -> str:
    """Returns the lines of a family with one series."""
    return f"# TYPE {name} {kind}\n{name}{labels} {value}\n"


def process_metrics() -> str:
    """Returns CPU, memory and file descriptors of this process under Prometheus' standard names."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    lines = [
        single(
            "process_cpu_seconds_total", "", round(usage.ru_utime + usage.ru_stime, 3), "counter"
        )
    ]
    if _STATM.exists():
        pages = _STATM.read_text(encoding="ascii").split()
        lines.append(single("process_virtual_memory_bytes", "", int(pages[0]) * _PAGE_BYTES))
        lines.append(single("process_resident_memory_bytes", "", int(pages[1]) * _PAGE_BYTES))
    if _FDS.exists():
        lines.append(single("process_open_fds", "", sum(1 for _ in _FDS.iterdir())))
    return "".join(lines)
