"""Compares seeds on a server with what is recorded and listed."""

from pathlib import Path

from tests.interop.support import ServerAddress

from . import golden
from .runner import outcomes
from .scenarios import scenario


def compared(
    server: ServerAddress, seeds: list[int], log: Path
) -> tuple[list[golden.Mismatch], list[golden.Difference]]:
    """Returns what differs and is not listed, and what is listed and does not differ."""
    scenarios, rows = [scenario(seed) for seed in seeds], golden.recorded()
    old = [each.seed for each in scenarios if rows.get(each.seed, ("",))[0] != each.digest()]
    if old:
        raise LookupError(f"record seeds anew, their steps have changed: {old}")
    expected = {each.seed: rows[each.seed][1] for each in scenarios}
    comparison = golden.Comparison()
    found = outcomes(server, scenarios, log, expected=expected, go_on=comparison.go_on)
    return comparison.mismatches(scenarios, expected, found), comparison.stale()
