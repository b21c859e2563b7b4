"""`python -m tests.chaos [--minutes 20] [--seed N] [--topics 20] [--rate 50] [--dir DIR]`."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.campaign import run
from tests.chaos.plan import KINDS, ROLES


def main() -> None:
    parser = argparse.ArgumentParser(description="official clients on a cluster under faults")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--rate", type=float, default=50.0, help="messages/s of each topic")
    parser.add_argument("--dir", type=Path, help="where all is kept (default: a new directory)")
    parser.add_argument("--kinds", nargs="+", choices=sorted(set(KINDS)), default=KINDS)
    parser.add_argument("--roles", nargs="+", choices=sorted(set(ROLES)), default=ROLES)
    args = parser.parse_args()
    root = args.dir or Path(tempfile.mkdtemp(prefix="chaos-"))
    root.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {text}", flush=True)

    tell(f"seed {args.seed}, everything in {root}")
    result = asyncio.run(
        run(
            root,
            seconds=args.minutes * 60,
            seed=args.seed,
            topics=args.topics,
            rate=args.rate,
            kinds=args.kinds,
            roles=args.roles,
            tell=tell,
        )
    )
    receipts = sum(len(record.receipts) for record in result.observations.topics.values())
    print(f"\n{receipts} receipted messages, {len(result.felt)} faults, {result.seconds:.0f} s\n")
    print(result.table())
    for error in sorted(set(result.observations.errors)):
        print(f"clients saw: {error}")
    for violation in result.violations:
        print(f"BROKEN: {violation}")
    print("broken promises:", len(result.violations))
    sys.exit(1 if result.violations else 0)


if __name__ == "__main__":
    main()
