"""`magnetar bookie inspect`: what is in a bookie's data directory, and what is wrong with it.

Thin: it parses, calls `magnetar.bookie.inspect` and prints. Tables with rich on a terminal, plain
columns elsewhere, JSON on request.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.bookie.inspect import Inspection
    from magnetar.bookie.inspect_files import Finding

DESCRIPTION = """\
Reads every journal record, every block of every entry log and the whole index of a bookie that is
stopped, checks every CRC and holds them against each other. Changes nothing.

What it prints:
  identity    the bookie's id and incarnation, and the version of its formats
  checkpoint  up to where the journal is contained in the entry logs: file, offset, record number
  journals    per file: bytes in use, record numbers, records by kind (add, fence, delete; mark:
              written when adds paused; gap: numbers refused on a full disk), ledgers
  logs        per entry log: bytes, blocks, entries, ledgers
  index       views (one per block), ledgers, and blocks that no view names
  findings    each with its file and offset:
                damage  something acknowledged is lost or wrong: re-replicate it from other bookies
                torn    a write that was cut off; nobody had been told that it was done
                note    worth knowing, no harm

Exit status: 0 if there is no damage, 1 if there is, 2 if the directory cannot be read.
"""

NOTES_SHOWN_MAX = 20


def add_parser(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `inspect` to the actions of `bookie`."""
    inspect = actions.add_parser(
        "inspect",
        help="scan journals, entry logs and index, and check every CRC",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument("data_dir", type=Path, metavar="DATA_DIR", help="the bookie's directory")
    inspect.add_argument("--json", action="store_true", help="print one JSON document")
    inspect.add_argument(
        "--ledger", type=int, metavar="N", help="say where the entries of ledger N are"
    )
    inspect.add_argument("--journal", action="store_true", help="show journals only")
    inspect.add_argument("--notes", action="store_true", help="show all notes, however many")


def run(args: argparse.Namespace) -> int:
    """Inspects; returns the exit status."""
    from magnetar.bookie.inspect import inspect
    from magnetar.bookie.os_files import OsFiles

    data_dir: Path = args.data_dir
    if not data_dir.is_dir():
        print(f"magnetar bookie inspect: {data_dir} is not a directory", file=sys.stderr)
        return 2
    try:
        found = inspect(OsFiles(), data_dir)
    except OSError as error:
        print(f"magnetar bookie inspect: {error}", file=sys.stderr)
        return 2
    if args.json:
        _print_json(found)
    else:
        _print_text(found, args)
    return 1 if found.damaged else 0


def _print_json(found: "Inspection") -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    sys.stdout.buffer.flush()


def _print_text(found: "Inspection", args: argparse.Namespace) -> None:
    print(f"{found.path}: bookie '{found.bookie_id}', incarnation {found.incarnation}, ", end="")
    print(f"format {found.format_version}")
    if found.checkpoint is not None:
        at = found.checkpoint
        print(f"checkpoint: journal {at.journal_file}, offset {at.offset}, record {at.seq}")
    if args.ledger is not None:
        _table("ledger " + str(args.ledger), LEDGER_COLUMNS, _ledger_rows(found, args.ledger))
    else:
        _table("journals", JOURNAL_COLUMNS, _journal_rows(found))
        if not args.journal:
            _table("entry logs", LOG_COLUMNS, _log_rows(found))
            _print_index(found)
    _print_findings(found.findings, show_all=args.notes)


JOURNAL_COLUMNS = ("file", "bytes", "used", "records", "first", "last", "kinds", "ledgers")
LOG_COLUMNS = ("file", "bytes", "blocks", "entries", "ledgers")
LEDGER_COLUMNS = ("file", "first entry", "last entry", "entries", "bytes")


def _journal_rows(found: "Inspection") -> Iterable[Sequence[str]]:
    for item in found.journals:
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


def _log_rows(found: "Inspection") -> Iterable[Sequence[str]]:
    for item in found.logs:
        counts = (item.bytes, item.blocks, item.entries, len(item.ledgers))
        yield (Path(item.file).name, *map(str, counts))


def _ledger_rows(found: "Inspection", ledger_id: int) -> Iterable[Sequence[str]]:
    ledgers = [(item.file, item.ledgers) for item in found.journals]
    ledgers += [(item.file, item.ledgers) for item in found.logs]
    for file, held in ledgers:
        ledger = held.get(ledger_id)
        if ledger is not None:
            counts = (ledger.first_entry, ledger.last_entry, ledger.entries, ledger.bytes)
            yield (Path(file).name, *map(str, counts))


def _print_index(found: "Inspection") -> None:
    index = found.index
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
