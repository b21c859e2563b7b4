"""One partition's redrive, as `magnetar redrive` follows it: over moves and deaths of its broker.

A broker that loses the topic ends its redrive, and one that dies takes the progress with it. The
same order, started at the next owner, continues: moved messages are acknowledged. What was moved
after the last report is then missing in the counts, so an order with a limit is not started again.
"""

import sys
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from magnetar.cli.admin_rest import AdminFailed
from magnetar.documents.redrive import RedriveProgress

POLL_S: Final = 0.25
STOP_POLLS_MAX: Final = 400
"""How often a stop is polled: the group that is being moved ends before."""
CONTINUE_S_MAX: Final = 60.0
"""How long a lost redrive is started again without coming further; a takeover takes less."""
RESTART_S: Final = 2.0
"""Between the end of a redrive and the start of the next."""
NOT_FOUND: Final = 404
PASSING: Final = frozenset({0, 502, 503, 504})
"""Statuses while a topic changes its owner; 0 is that of a broker that does not answer."""

Ask = Callable[[str, str], RedriveProgress]
"""Sends a request with a method, and the id of the redrive that it concerns, if that has one."""


class Part:
    """The redrive of one topic or partition."""

    def __init__(
        self, topic: str, ask: Ask, show: Callable[[RedriveProgress], None], *, limited: bool
    ) -> None:
        """`limited`: whether the order has a limit, which holds for one redrive only."""
        self._topic = topic
        self._ask = ask
        self._show = show
        self._limited = limited
        self._id: str | None = None
        """Of the redrive that runs; None while there is none, empty from an earlier version."""
        self._last = RedriveProgress(state="running")
        self._moved_before = 0
        """By earlier redrives of this order."""
        self._examined_most = 0
        self._give_up_at: float | None = None

    def run(self) -> tuple[RedriveProgress, bool]:
        """Returns the result, and whether Ctrl-C has stopped it.

        Raises AdminFailed if it cannot be started; later, the result has the error.
        """
        try:
            self._report(self._ask("POST", ""))
            while not self._last.ended or self._last.resumable:
                time.sleep(POLL_S)
                self._poll()
        except KeyboardInterrupt:
            self._stop()
            return self._result(), True
        return self._result(), False

    def _poll(self) -> None:
        """Asks for the progress, or starts the redrive again if it was lost."""
        if self._last.ended and not self._carry_on(self._last.error):
            return
        try:
            started = self._id is not None
            self._report(self._ask("GET", self._id or "") if started else self._ask("POST", ""))
        except AdminFailed as error:
            if error.status == NOT_FOUND and started:
                self._carry_on("the broker that ran it has died, or has lost the topic")
            elif error.status in PASSING:
                self._wait_for_owner(str(error))
            else:
                self._fail(str(error))

    def _report(self, progress: RedriveProgress) -> None:
        further = progress.moved > (0 if self._id is None else self._last.moved)
        if further or progress.examined > self._examined_most:
            self._give_up_at = None
        self._examined_most = max(self._examined_most, progress.examined)
        self._id, self._last = progress.id, progress
        self._show(self._result())

    def _carry_on(self, reason: str) -> bool:
        """Has the next request start it again; returns False if there is none."""
        if self._limited:
            self._fail(
                f"{reason}. Not many more than {self._last.moved} messages were moved: run the "
                "command again with the limit that is left, it continues"
            )
            return False
        if not self._wait_for_owner(reason):
            return False
        if not self._last.dry_run:
            self._moved_before += self._last.moved
        self._id, self._last = None, replace(self._last, state="running", moved=0, resumable=False)
        time.sleep(RESTART_S)
        print(f"magnetar redrive: {self._topic}: {reason} (started again)", file=sys.stderr)
        return True

    def _wait_for_owner(self, reason: str) -> bool:
        """Returns whether another try may help; it has failed if not."""
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + CONTINUE_S_MAX
        elif now >= self._give_up_at:
            self._fail(f"{reason}. It came no further for {CONTINUE_S_MAX:g} s")
            return False
        return True

    def _fail(self, error: str) -> None:
        self._last = replace(self._last, state="failed", error=error, resumable=False)

    def _result(self) -> RedriveProgress:
        """The last report, with what was moved before."""
        last, before = self._last, self._moved_before
        return replace(
            last,
            moved=last.moved + before,
            examined=last.examined + before,
            matched=last.matched + before,
        )

    def _stop(self) -> None:
        if self._id is None:
            text = f"magnetar redrive: {self._topic}: Ctrl-C came before an answer: it may run"
            print(text, file=sys.stderr)
            return
        try:
            self._report(self._ask("DELETE", self._id))
            for _ in range(STOP_POLLS_MAX):
                if self._last.ended:
                    return
                time.sleep(POLL_S)
                self._report(self._ask("GET", self._id))
        except AdminFailed as error:
            if error.status != NOT_FOUND:  # 404: it was lost, and so it ends
                raise AdminFailed(f"{error}. It may run on") from None
        self._last = replace(self._last, state="stopped")
