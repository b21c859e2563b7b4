"""The recorded answers of Pulsar, the listed differences, and the page made from both.

Everything here is read from the repository, so that the page is made and checked without
a server or a JVM.
"""

import json
import tomllib
from dataclasses import dataclass

from .answers import Answer
from .lines import HERE, lines

ROOT = HERE.parents[2]
GOLDEN = ROOT / "tests" / "golden" / "pulsar_admin"
ANSWERS = GOLDEN / "answers_of_pulsar_4_2_4.jsonl"
CATALOG = GOLDEN / "commands_of_pulsar_admin_4_0_8.json"
PAGE = ROOT / "docs" / "run" / "pulsar-admin.md"
# From the mildest on; a command with several lines may have several.
VERDICTS = ("same", "better", "different", "absent")
NOT_COMPARED = "not compared yet"
HEAD = """# The commands of pulsar-admin

Made by `python -m tests.interop.admin_table page`; do not edit. It lists all commands of
`pulsar-admin` 4.0.8. *Same*: status, exit code and normalized output are those of Pulsar 4.2.4, for
the arguments in `tests/interop/admin_table/commands`. *Better*, *different* and *absent* have the
reason; *in part* is for some of the arguments.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that differs from Pulsar's on purpose: `answer` is a part of ours."""

    verdict: str
    reason: str
    answer: str


def recorded() -> list[Answer]:
    """Pulsar's answers, in the order of the lines."""
    return [Answer.loaded(json.loads(line)) for line in ANSWERS.read_text().splitlines()]


def record(answers: list[Answer]) -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    text = "\n".join(json.dumps(answer.document(), sort_keys=True) for answer in answers)
    ANSWERS.write_text(text + "\n")


def catalog() -> dict[str, list[str]]:
    """Commands with their options, as recorded from the tool."""
    return dict(json.loads(CATALOG.read_text()))


def record_catalog(commands: dict[str, list[str]]) -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(commands[name])}" for name in commands)
    CATALOG.write_text(f"{{\n{rows}\n}}\n")


def differences() -> dict[str, Difference]:
    """The lines that we answer differently, by their text."""
    found = tomllib.loads((HERE / "differences.toml").read_text())
    return {
        row["command"]: Difference(row["verdict"], row["reason"], row["answer"])
        for row in found["line"]
    }


def absent_groups() -> dict[str, str]:
    """Groups without any command, with the reason."""
    found = tomllib.loads((HERE / "differences.toml").read_text())
    return {row["name"]: row["reason"] for row in found["absent"]}


def mismatches(ours: list[Answer], pulsars: list[Answer]) -> list[tuple[Answer, Answer]]:
    """Pairs (ours, Pulsar's) that differ in a way that is not listed."""
    known = differences()
    return [
        (our, pulsar)
        for our, pulsar in zip(ours, pulsars, strict=True)
        if not _as_listed(our, pulsar, known.get(our.command))
    ]


def _as_listed(our: Answer, pulsar: Answer, listed: Difference | None) -> bool:
    if listed is None or our == pulsar:
        # The same line may stand in several states, of which only some differ.
        return our == pulsar
    return listed.answer in f"{our.status} {json.dumps(our.output)}"


def needless(ours: list[Answer], pulsars: list[Answer]) -> list[str]:
    """Listed differences that no line shows any more: they would hide the next one."""
    pairs = zip(ours, pulsars, strict=True)
    return sorted(differences().keys() - {our.command for our, pulsar in pairs if our != pulsar})


def page() -> str:
    """The page's text."""
    known, groups = differences(), absent_groups()
    verdicts: dict[str, list[tuple[str, str]]] = {}
    for line in lines():
        if line.mode != ">":
            found = known.get(line.text)
            row = (found.verdict, found.reason) if found else ("same", "")
            verdicts.setdefault(line.command, []).append(row)
    parts, group = [HEAD], ""
    for command in catalog():
        if command.split()[0] != group:
            group = command.split()[0]
            parts.append(f"\n## {group}\n\n| Command | Magnetar |\n|---|---|\n")
        rows = verdicts.get(command, [])
        if group in groups:
            rows = [("absent", groups[group])]
        parts.append(f"| `{command.removeprefix(group).strip()}` | {_cell(rows)} |\n")
    return "".join(parts)


def _cell(rows: list[tuple[str, str]]) -> str:
    if not rows:
        return NOT_COMPARED
    parts = []
    for verdict in sorted({verdict for verdict, _ in rows}, key=VERDICTS.index):
        reasons = dict.fromkeys(reason for found, reason in rows if found == verdict and reason)
        parts.append(f"{verdict}: {' '.join(reasons)}" if reasons else verdict)
    return " In part ".join(part if part.endswith(".") else f"{part}." for part in parts)


def unknown_lines() -> list[str]:
    """Lines of the differences that no file of commands has: they would never be checked."""
    texts = {line.text for line in lines()}
    return [text for text in differences() if text not in texts]
