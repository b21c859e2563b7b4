"""A bookie in memory whose answers to adds can be held back, as if its disk had stopped."""

from collections.abc import Sequence

from tests.support.memory_bookie import MemoryBookie

from magnetar.bookie.api import BookieError, OnAdded


class HeldBookie(MemoryBookie):
    """Stores adds, and answers them only while `hold` is False."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = False
        self.held: list[tuple[OnAdded, BookieError | None]] = []
        """The answers that wait for `release`."""

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        def answer(error: BookieError | None) -> None:
            self.answer(on_added, error)

        super().add_entries(
            ledger_id,
            entry_ids,
            entries,
            last_add_confirmed=last_add_confirmed,
            on_added=answer,
            recovery=recovery,
        )

    def answer(self, on_added: OnAdded, error: BookieError | None) -> None:
        """Answers an add, or holds the answer back."""
        if self.hold:
            self.held.append((on_added, error))
        else:
            on_added(error)

    def release(self) -> None:
        """Answers the held adds, in order, and holds none from now on."""
        self.hold = False
        held, self.held = self.held, []
        for on_added, error in held:
            on_added(error)
