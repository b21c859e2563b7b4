"""The shell of the commands that run a process of a cluster: broker, bookie and autorecovery.

Each command describes itself by a `ProcessCommand`. The shell reads the settings, checks that the
ports are free, starts the process, prints its banner, and drains it on a signal.
"""

import argparse
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from magnetar.cli import roles, run_loop

if TYPE_CHECKING:
    from magnetar.cluster.nodes import Node

N = TypeVar("N", bound="Node")


def _accept(_settings: object) -> None:
    """The check of a role whose settings need none beyond those of the settings class."""


@dataclass(frozen=True, slots=True)
class ProcessCommand(Generic[roles.S, N]):
    """One role's command: its settings, its start, and the lines of its banner."""

    role: str
    settings: type[roles.S]
    ports: Callable[[roles.S], Mapping[str, int | None]]
    """Returns the ports on which the process listens, by the names of their settings."""
    start: Callable[[roles.S], Coroutine[Any, Any, N]]
    """Starts the process. Imports its module only then, so that `--help` does not."""
    banner: Callable[[N, roles.S], Sequence[tuple[str, str]]]
    """Returns the lines of the banner below the cluster's, as (title, text)."""
    check: Callable[[roles.S], None] = _accept
    """Raises Refused for settings that do not fit together."""

    def run(self, args: argparse.Namespace) -> int:
        """Runs the process until a signal; returns the exit code."""
        try:
            settings = roles.settings(self.role, self.settings, args)
            roles.check_ports(settings.host, self.ports(settings))
            self.check(settings)
        except roles.Refused as refused:
            return refused.code
        return run_loop.run(
            run_loop.serve(
                lambda: self.start(settings),
                on_ready=lambda process: print(self.banner_text(process, settings), flush=True),
                shutdown_timeout_ms=settings.shutdown_timeout_ms,
            )
        )

    def banner_text(self, process: N, settings: roles.S) -> str:
        """Returns the banner of a process that is ready."""
        cluster = f"{settings.cluster_name}   (metadata: {settings.member.metadata_url})"
        lines = [("cluster", cluster), *self.banner(process, settings)]
        return f"{self.role} is ready\n" + "".join(f"  {title:9} {text}\n" for title, text in lines)
