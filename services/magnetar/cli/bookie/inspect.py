"""`magnetar bookie inspect`: lists the files of a bookie's data directory and their damage.

`magnetar.bookie.inspect.inspection` inspects; this module prints: tables on a terminal, plain
columns elsewhere, JSON on request.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.bookie.inspect.files import Finding
    from magnetar.bookie.inspect.inspection import Inspection

DESCRIPTION = """\
Reads every journal record, every block of every entry log and the whole index of a stopped bookie,
verifies every CRC and compares them with each other. Changes nothing.

Output:
  identity    the bookie's id and incarnation, and the version of its formats
  checkpoint  the position in the journal up to which the entry logs contain it: file, offset,
              record number
  journals    per file: bytes in use, record numbers, records by kind (add, fence, delete; mark:
              written when adds paused; gap: numbers refused on a full disk), ledgers
  logs        per entry log: bytes, blocks, entries, ledgers
  index       views (one per block), ledgers, and blocks without a view
  findings    each with its file and offset:
                damage  an acknowledged entry is lost or wrong: re-replicate it from other bookies
                torn    a write that was cut off before it was acknowledged
                note    harmless

Exit status: 0 if there is no damage, 1 if there is, 2 if the directory cannot be read.
"""

NOTES_SHOWN_MAX = 20


def add_parser(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the action `inspect`."""
    inspect = actions.add_parser(
        "inspect",
        help="scan journals, entry logs and index, and check every CRC",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument("data_dir", type=Path, metavar="DATA_DIR", help="the bookie's directory")
    inspect.add_argument("--json", action="store_true", help="print one JSON document")
    inspect.add_argument(
        "--ledger", type=int, metavar="N", help="show the files with entries of ledger N"
    )
    inspect.add_argument("--journal", action="store_true", help="show journals only")
    inspect.add_argument("--notes", action="store_true", help="show all notes")


def run(args: argparse.Namespace) -> int:
    """Inspects the directory and prints the result; returns the exit code."""
    from magnetar.bookie.inspect.inspection import inspect
    from magnetar.disk.os_files import OsFiles

    data_dir: Path = args.data_dir
    if not data_dir.is_dir():
        print(f"magnetar bookie inspect: {data_dir} is not a directory", file=sys.stderr)
        return 2
    try:
        inspection = inspect(OsFiles(), data_dir)
    except OSError as error:
        print(f"magnetar bookie inspect: {error}", file=sys.stderr)
        return 2
    if args.json:
        _print_json(inspection)
    else:
        _print_text(inspection, args)
    return 1 if inspection.damaged else 0


def _print_json(inspection: "Inspection") -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(inspection)) + b"\n")
    sys.stdout.buffer.flush()


def _print_text(inspection: "Inspection", args: argparse.Namespace) -> None:
    identity = f"bookie '{inspection.bookie_id}', incarnation {inspection.incarnation}"
    print(f"{inspection.path}: {identity}, format {inspection.format_version}")
    checkpoint = inspection.checkpoint
    if checkpoint is not None:
        print(
            f"checkpoint: journal {checkpoint.journal_file}, offset {checkpoint.offset}, "
            f"record {checkpoint.seq}"
        )
    if args.ledger is not None:
        _table("ledger " + str(args.ledger), LEDGER_COLUMNS, _ledger_rows(inspection, args.ledger))
    else:
        _table("journals", JOURNAL_COLUMNS, _journal_rows(inspection))
        if not args.journal:
            _table("entry logs", LOG_COLUMNS, _log_rows(inspection))
            _print_index(inspection)
    _print_findings(inspection.findings, show_all=args.notes)


JOURNAL_COLUMNS = ("file", "bytes", "used", "records", "first", "last", "kinds", "ledgers")
LOG_COLUMNS = ("file", "bytes", "blocks", "entries", "ledgers")
LEDGER_COLUMNS = ("file", "first entry", "last entry", "entries", "bytes")


def _journal_rows(inspection: "Inspection") -> Iterable[Sequence[str]]:
    for item in inspection.journals:
        kinds = " ".join(f"{kind}:{count}" for kind, count in item.records.items())
        yield (
            Path(item.file).name,
            str(item.bytes),
            str(item.used_bytes),
            str(sum(item.records.values())),
            str(item.first_seq),
            str(item.last_seq),
            kinds,
            str(len(item.ledgers)),
        )


def _log_rows(inspection: "Inspection") -> Iterable[Sequence[str]]:
    for item in inspection.logs:
        counts = (item.bytes, item.blocks, item.entries, len(item.ledgers))
        yield (Path(item.file).name, *map(str, counts))


def _ledger_rows(inspection: "Inspection", ledger_id: int) -> Iterable[Sequence[str]]:
    ledgers = [(item.file, item.ledgers) for item in inspection.journals]
    ledgers += [(item.file, item.ledgers) for item in inspection.logs]
    for file, held in ledgers:
        ledger = held.get(ledger_id)
        if ledger is not None:
            counts = (ledger.first_entry, ledger.last_entry, ledger.entries, ledger.bytes)
            yield (Path(file).name, *map(str, counts))


def _print_index(inspection: "Inspection") -> None:
    index = inspection.index
    if index is None:
        return
    print(
        f"\nindex: {index.views} views; {index.ledgers} ledgers ({index.fenced} fenced, "
        f"{index.deleted} deleted); {index.blocks_without_view} blocks without a view "
        f"({index.bytes_without_view} bytes)"
    )


def _print_findings(findings: "Sequence[Finding]", *, show_all: bool) -> None:
    counts = {kind: sum(f.kind == kind for f in findings) for kind in ("damage", "torn", "note")}
    print("\nfindings: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    notes = 0
    for finding in sorted(findings, key=lambda f: ("damage", "torn", "note").index(f.kind)):
        notes += finding.kind == "note"
        if notes > NOTES_SHOWN_MAX and not show_all:
            print(f"  … and {counts['note'] - NOTES_SHOWN_MAX} more notes (--notes shows all)")
            return
        print(f"  {finding.kind:<6} {finding.file} at offset {finding.offset}: {finding.text}")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = list(rows)
    print(f"\n{title}: {len(lines) or 'none'}")
    if not lines:
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns)
        for line in lines:
            table.add_row(*line)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
    for line in (columns, *lines):
        print("  " + "  ".join(map(str.ljust, line, widths)).rstrip())
