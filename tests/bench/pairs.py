"""Compares this checkout with another one, such as the commit before a change.

    python -m tests.bench.pairs OTHER [--pairs 10] [--seconds 6] [--set KEY=VALUE] [NAME...]

OTHER is a checkout in which `make setup` has been run. `--set` configures this checkout's server
only: with OTHER `.`, the ratio is what the setting costs. Both run the scenarios in turn, each pair
in the opposite order of the one before, so that neither profits from a machine that changes. Prints
each scenario's CPU per message, the medians and their ratio.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
DEFAULT_NAMES = ("wheel 1 KiB batched", "wheel 1 KiB unbatched")
FIGURE = "cpu_us"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for this checkout")
    parser.add_argument("names", nargs="*", metavar="NAME", default=DEFAULT_NAMES)
    arguments = parser.parse_args()
    other = arguments.other.resolve()
    settings = [f"--set={setting}" for setting in arguments.set]
    sides = {"other": (other, list[str]()), "this": (HERE, settings)}
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in range(arguments.pairs):
        for side in ("this", "other") if pair % 2 else ("other", "this"):
            checkout, options = sides[side]
            for name, figure in _run(checkout, options, arguments.seconds, arguments.names).items():
                figures[name][side].append(figure)
                print(f"{pair + 1}/{arguments.pairs} {side:5} {name}: {figure} µs", flush=True)
    print("\n| scenario | other, CPU µs per message | this | ratio |\n|---|---|---|---|")
    for name, of in figures.items():
        before, now = statistics.median(of["other"]), statistics.median(of["this"])
        print(f"| {name} | {before:.3g} | {now:.3g} | {now / before:.3f} |")


def _run(checkout: Path, settings: list[str], seconds: int, names: list[str]) -> dict[str, float]:
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        sys.exit(f"{checkout} has no .venv: run `make setup` there first")
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
        command = [str(python), "-m", "tests.bench", "--only", "magnetar", "--runs", "1"]
        options = [*settings, "--seconds", str(seconds), "--out", out.name]
        subprocess.run(
            [*command, *options, *names], cwd=checkout, check=True, stdout=subprocess.DEVNULL
        )
        rows = [json.loads(line) for line in Path(out.name).read_text().splitlines()]
    return {row["scenario"]: row[FIGURE] for row in rows}


if __name__ == "__main__":
    main()
