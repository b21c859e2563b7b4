"""`python -m tests.history FILE...`: judges a stored history; exit status 1 if a rule fails.

Several files are the clients of one campaign.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.history.check import check
from tests.history.storage import Malformed, read


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    begun = time.monotonic()
    try:
        events = read(*arguments.files)
    except Malformed as error:
        print(error)
        return 2
    findings = check(events)
    for finding in findings:
        print(finding)
    kinds = Counter(type(event).__name__ for event in events)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items()))
    took_s = time.monotonic() - begun
    print(f"{len(findings)} findings in {len(events)} events, {took_s:.1f} s: {shown}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
