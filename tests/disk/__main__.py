"""`python -m tests.disk`: seeds of a bookie on a lying disk; see README.md."""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.disk.acknowledged import Violation
from tests.disk.bugs import BUGS, SEEDS_MAX, Bug
from tests.disk.seed import run_seed
from tests.support.etcd import start_etcd


def main(arguments: Sequence[str]) -> int:
    """Runs seeds; 1 if one found something, or if `--prove` left a mistake unseen."""
    parser = argparse.ArgumentParser(prog="python -m tests.disk", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--base", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this one alone, with its story")
    parser.add_argument("--days", default="", help="instead of drawn ones: cut,full,latent")
    parser.add_argument("--bug", default="", choices=("", *BUGS), help="with a planted mistake")
    parser.add_argument("--prove", action="store_true", help="each planted mistake is found")
    parser.add_argument("--keep", action="store_true", help="keep the directories of what failed")
    options = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(prefix="magnetar-disk-"))
    etcd = start_etcd(root)
    try:
        return _prove(root, etcd.url) if options.prove else _campaign(options, root, etcd.url)
    finally:
        etcd.stop()
        if options.keep:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def _campaign(options: argparse.Namespace, root: Path, url: str) -> int:
    bug = BUGS.get(options.bug)
    days = tuple(day for day in options.days.split(",") if day) or (bug.days if bug else ())
    started, counts, failed = time.monotonic(), Counter[str](), list[int]()
    first = options.base if options.seed is None else options.seed
    last = first + (options.seeds if options.seed is None else 1)
    for seed in range(first, last):
        began = time.monotonic()
        try:
            run = asyncio.run(
                run_seed(seed, root, url, bug=options.bug, days=days, harsh=bug is not None)
            )
        except Violation as violation:
            failed.append(seed)
            print(f"{violation}\nagain: python -m tests.disk --seed {seed}", flush=True)
            if options.keep:
                continue
        else:
            counts += run.counts
            text = ", ".join(name[8:] for name in run.counts if name.startswith("days of "))
            print(f"seed {seed}: {text}: good, {time.monotonic() - began:.0f} s", flush=True)
            if options.seed is not None:
                print("\n".join(run.story))
        shutil.rmtree(root / str(seed))
    for name, count in sorted(counts.items()):
        print(f"{count:8d} {name}")
    print(
        f"{last - first} seeds, {len(failed)} failed {failed}, {time.monotonic() - started:.0f} s"
    )
    return 1 if failed else 0


def _prove(root: Path, url: str) -> int:
    """Plants each mistake; 1 if one stays unseen."""
    unseen = [bug.name for bug in BUGS.values() if not _found(bug, root, url)]
    print(f"{len(BUGS)} mistakes, {len(unseen)} not found {unseen}")
    return 1 if unseen else 0


def _found(bug: Bug, root: Path, url: str) -> bool:
    for seed in range(SEEDS_MAX):
        try:
            asyncio.run(run_seed(seed, root, url, bug=bug.name, days=bug.days, harsh=True))
        except Violation as violation:
            print(f"{bug.name}: {str(violation).splitlines()[0][:200]}", flush=True)
            return True
        finally:
            shutil.rmtree(root / str(seed))
    print(f"{bug.name}: NOT FOUND in {SEEDS_MAX} seeds", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
