"""The flags of `magnetar job offload`, as the settings of one run."""

import argparse

from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.jobs.offload.plan import MS_PER_S, Override
from magnetar_spark.jobs.store_flag import store_of


def override_of(args: argparse.Namespace) -> Override:
    """From parsed flags. Raises PreconditionFailed naming the flag."""
    lag_s: int | None = args.deletion_lag
    return Override(
        store_of(args),
        args.threshold,
        args.threshold_age,
        None if lag_s is None else max(-1, lag_s * MS_PER_S),
        parse_position(args.up_to) if args.up_to else None,
    )


def parse_position(text: str) -> Position:
    """Parses `LEDGER:ENTRY`. Raises PreconditionFailed."""
    ledger_id, _, entry_id = text.partition(":")
    try:
        return Position(int(ledger_id), int(entry_id))
    except ValueError:
        raise PreconditionFailed(f"--up-to '{text}': write LEDGER:ENTRY") from None
