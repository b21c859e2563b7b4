"""One redrive: reads a subscription's dead letters in order, and has the matching ones moved.

It reads the log from the cursor's mark-delete position to the last message at its start, so it
needs no state of its own to continue after a stop or a crash: what was moved is acknowledged.
"""

import asyncio
from collections import Counter
from typing import Final

from magnetar.broker.redrive.dead_letters import DeadLetters
from magnetar.broker.redrive.letters import ORIGIN, Letter, Skip, letters_of
from magnetar.broker.redrive.mover import TRANSACTION_TIMEOUT_S, Addressed, GroupTimeout, Mover
from magnetar.broker.redrive.progress import Order, Progress, Rights, State
from magnetar.broker.redrive.targets import Targets
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.client.errors import AuthenticationFailed, AuthorizationFailed, ClientError
from magnetar.core.clock import Clock
from magnetar.core.errors import AuthorizationError, Conflict, InvalidTopicName, MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName, parse_topic
from magnetar.managed_ledger.entry import Entry

GROUP_MESSAGES_MAX: Final = 100
GROUP_BYTES_MAX: Final = 4 << 20
"""The size at which a group is moved; its last message comes on top."""
READ_ENTRIES: Final = 100
READ_BYTES: Final = 4 << 20
TARGETS_MAX: Final = 1_000
"""Targets of one redrive whose existence is remembered."""
RESCAN_INTERVAL_S: Final = 1.0
"""How long letters that a transaction holds are left to it before the next scan."""
RESCANS_MAX: Final = int(2 * TRANSACTION_TIMEOUT_S / RESCAN_INTERVAL_S)
SLEEP_S_MAX: Final = 0.5
"""A redrive that waits for its rate notices a stop within this time."""

LASTING: Final = (AuthorizationError, Conflict, AuthenticationFailed, AuthorizationFailed)
"""Errors that last until rights or consumers change. All others may pass."""

log = get_logger("magnetar.redrive")


class Redrive:
    """Moves the letters of one subscription."""

    def __init__(
        self,
        topic: PersistentTopic,
        letters: DeadLetters,
        order: Order,
        rights: Rights | None,
        targets: Targets,
        clock: Clock,
    ) -> None:
        """`rights` are those of the role that starts it; None without authorization."""
        self.progress = Progress(order.dry_run)
        self._topic = topic
        self._letters = letters
        self._order = order
        self._rights = rights
        self._clock = clock
        self._group: list[Addressed] = []
        self._group_bytes = 0
        self._group_max = GROUP_MESSAGES_MAX
        if order.rate is not None:  # a group is at most the messages of a second
            self._group_max = max(1, min(GROUP_MESSAGES_MAX, int(order.rate)))
        self._next_s = clock.monotonic()
        self._targets = targets
        self._known_targets: dict[str, TopicName | Skip] = {}

    async def run(self, mover: Mover | None) -> None:
        """Moves the letters. A dry run needs no mover. Errors are in `progress`."""
        progress = self.progress
        try:
            await self._run(mover)
            progress.state = State.STOPPED if self._stopping else State.FINISHED
        except (MagnetarError, ClientError, TimeoutError) as error:
            progress.error = str(error) or type(error).__name__
            progress.resumable = not isinstance(error, LASTING)
            progress.state = State.FAILED
        except asyncio.CancelledError:
            progress.error, progress.state = "The broker is stopping", State.FAILED
            progress.resumable = True
            raise
        except Exception as error:
            progress.error, progress.state = f"Internal error: {error!r}", State.FAILED
            log.exception("redrive failed", topic=self._topic.full_name)
        finally:
            if mover is not None:
                await mover.close()
            log.info(
                "redrive ended", topic=self._topic.full_name,
                subscription=self._letters.subscription.name, state=progress.state.value,
                moved=progress.moved, error=progress.error,
            )  # fmt: skip

    async def _run(self, mover: Mover | None) -> None:
        end = self._topic.managed_ledger.last_visible
        for _ in range(RESCANS_MAX):
            await self._scan(mover, end)
            if self._done or not self.progress.skipped[Skip.IN_TRANSACTION]:
                return
            # A crash may have left them in a transaction that its coordinator ends soon.
            await asyncio.sleep(RESCAN_INTERVAL_S)
            if self._stopping:
                return
            self.progress.rescanned()

    @property
    def _stopping(self) -> bool:
        return self.progress.state is State.STOPPING

    @property
    def _done(self) -> bool:
        """Whether nothing more is to be read."""
        progress, limit = self.progress, self._order.limit
        moved = progress.moved + len(self._group)
        if self._order.dry_run:
            moved = progress.matched - progress.skipped.total()
        return self._stopping or (limit is not None and moved >= limit)

    async def _scan(self, mover: Mover | None, end: Position) -> None:
        ledger, cursor = self._topic.managed_ledger, self._letters.subscription.cursor
        position = ledger.next_position(cursor.mark_delete)
        while position <= end and not self._done:
            self._letters.check()
            page = await ledger.read(position, READ_ENTRIES, READ_BYTES)
            if not page:
                break
            for entry in page:
                if entry.position > end or (self._done and not self._group):
                    break
                await self._entry(entry, mover)
                await asyncio.sleep(0)  # a cached page is read without a wait
            position = ledger.next_position(max(page[-1].position, cursor.mark_delete))
        await self._flush(mover)

    async def _entry(self, entry: Entry, mover: Mover | None) -> None:
        position, progress = entry.position, self.progress
        if self._letters.is_done(position):
            return
        if self._topic.managed_ledger.is_aborted(*position):
            return
        progress.last_position = str(position)
        letters = letters_of(entry.data, position)
        if letters is None:
            return
        if isinstance(letters, Skip):
            progress.examined += 1
            progress.matched += 1
            progress.skipped[letters] += 1
            return
        for letter in letters:
            if self._done:
                await self._flush(mover)
                if self._done:
                    return
            await self._letter(letter, mover)

    async def _letter(self, letter: Letter, mover: Mover | None) -> None:
        progress, accepts = self.progress, self._order.accepts
        standing = self._letters.standing(letter)
        if standing is False:
            return
        progress.examined += 1
        if accepts is not None and not accepts(letter.seen):
            return
        progress.matched += 1
        target = standing if isinstance(standing, Skip) else await self._target(letter)
        if isinstance(target, Skip):
            progress.skipped[target] += 1
            return
        if self._order.dry_run:
            return
        self._group.append(Addressed(letter, target))
        self._group_bytes += len(letter.payload)
        full = len(self._group) >= self._group_max or self._group_bytes >= GROUP_BYTES_MAX
        if full or self._done:
            await self._flush(mover)

    async def _target(self, letter: Letter) -> TopicName | Skip:
        text = letter.properties.get(ORIGIN, "") if self._order.to is None else str(self._order.to)
        known = self._known_targets.get(text)
        if known is None:
            known = await self._looked_up(text)
            if len(self._known_targets) >= TARGETS_MAX:
                self._known_targets.clear()
            self._known_targets[text] = known
        return known

    async def _looked_up(self, text: str) -> TopicName | Skip:
        if not text:
            return Skip.NO_ORIGIN
        try:
            target = parse_topic(text)
        except InvalidTopicName:
            return Skip.NO_ORIGIN
        if target.base == self._topic.name.base:
            return Skip.TARGET_IS_SOURCE
        return await self._refusal(target) or target

    async def _flush(self, mover: Mover | None) -> None:
        group, self._group, self._group_bytes = self._group, [], 0
        if not group or mover is None:
            return
        await self._wait_for_rate()
        if self._stopping:
            return
        self._letters.check()
        group = await self._checked_again(group)
        moved, skipped = await self._moved(group, mover)
        self.progress.moved += moved
        self.progress.skipped.update(skipped)
        if self._order.rate is not None:
            self._next_s = max(self._next_s, self._clock.monotonic()) + moved / self._order.rate

    async def _moved(self, group: list[Addressed], mover: Mover) -> tuple[int, Counter[Skip]]:
        """Moves a group, in halves if a target is too slow for all of it (a publish rate)."""
        try:
            return await mover.move(group)
        except GroupTimeout:
            if len(group) == 1 or self._stopping:
                raise
        self._group_max = len(group) // 2
        moved, skipped = 0, Counter[Skip]()
        for half in (group[: self._group_max], group[self._group_max :]):
            if not self._stopping:
                self._letters.check()
                count, stay = await self._moved(await self._checked_again(half), mover)
                moved += count
                skipped += stay
        return moved, skipped

    async def _checked_again(self, group: list[Addressed]) -> list[Addressed]:
        """Returns the letters whose targets still exist and are still permitted."""
        if self._rights is not None:
            await self._rights.check_source()
        refusals: dict[TopicName, Skip | None] = {}
        for target in {item.target for item in group}:
            refusals[target] = await self._refusal(target)
        kept = []
        for item in group:
            refusal = refusals[item.target]
            if refusal is None:
                kept.append(item)
            else:
                self.progress.skipped[refusal] += 1
        return kept

    async def _refusal(self, target: TopicName) -> Skip | None:
        """Returns why no letter can be moved to a topic now, None if it can."""
        if self._rights is not None and not await self._rights.produce(target):
            return Skip.NO_RIGHT
        return None if await self._targets.exist(target) else Skip.TARGET_MISSING

    async def _wait_for_rate(self) -> None:
        while (left_s := self._next_s - self._clock.monotonic()) > 0 and not self._stopping:
            self._letters.check()
            await asyncio.sleep(min(left_s, SLEEP_S_MAX))
