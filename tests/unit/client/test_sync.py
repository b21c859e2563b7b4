"""The blocking client: its generated classes, and the thread that carries its calls."""

import ast
import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import magnetar.client
import magnetar.client.sync
from magnetar.client.consumer.listener import run_listener
from magnetar.client.errors import AlreadyClosed, ClientError, UsedAfterFork
from magnetar.client.message import Message
from magnetar.client.sync import Client
from magnetar.client.sync.generator import LEFT_OUT, SOURCES, generate
from magnetar.client.sync.portal import QUEUED_CALLS_MAX, Portal
from magnetar.client.sync.workers import run_in_threads

DEADLINE_S = 20.0
PRESS_AGAIN_S = 2.0
FOLDER = Path(magnetar.client.sync.__file__).parent


@pytest.mark.parametrize("name", SOURCES)
def test_the_generated_classes_are_fresh(name: str) -> None:
    generated = ast.parse(generate(SOURCES[name]))
    committed = ast.parse((FOLDER / f"{name}.py").read_text())
    assert ast.dump(generated) == ast.dump(committed), "type: make sync"


@pytest.mark.parametrize("name", magnetar.client.sync.__all__)
def test_every_public_name_has_its_blocking_form(name: str) -> None:
    source, blocking = getattr(magnetar.client, name), getattr(magnetar.client.sync, name)
    for member, value in vars(source).items():
        if member.startswith("_") or member in LEFT_OUT.get(name, ()):
            continue
        assert type(vars(blocking)[member]) is type(value), member
        if inspect.isfunction(value):
            ours = inspect.signature(getattr(blocking, member)).parameters
            assert list(ours) == list(inspect.signature(value).parameters), member


class Rig:
    """A portal, with the number of times that it was finished."""

    def __init__(self) -> None:
        self.finished = 0
        self.portal = Portal(self._finish)

    async def _finish(self) -> None:
        self.finished += 1


@pytest.fixture
def rig() -> Iterator[Rig]:
    before = set(threading.enumerate())
    rig = Rig()
    yield rig
    rig.portal.close()
    assert not set(threading.enumerate()) - before, "a thread is left"


async def give(value: object) -> object:
    await asyncio.sleep(0)
    return value


async def fail(error: BaseException) -> None:
    raise error


def test_results_and_errors_reach_their_callers(rig: Rig) -> None:
    results: list[object] = []

    def call(number: int) -> None:
        results.append(rig.portal.call(lambda: give(number)))
        with pytest.raises(KeyError, match=str(number)):
            rig.portal.call(lambda: fail(KeyError(number)))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(map(str, results)) == sorted(map(str, range(20)))


def test_the_tasks_of_calls_have_names(rig: Rig) -> None:
    async def own_name() -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    class Awaited:
        def __await__(self) -> Generator[Any, None, str]:
            return own_name().__await__()

    name = "test_the_tasks_of_calls_have_names.<locals>.own_name"
    assert rig.portal.call(own_name) == f"magnetar-client/{name}"
    assert rig.portal.call(Awaited) == "magnetar-client/Awaited"


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """A process that was started in the background may ignore SIGINT, and its children do too."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def interrupt_when(reached: threading.Event, heard: threading.Event) -> threading.Thread:
    """Ctrl-C for the main thread, once `reached` is set, until `heard` is.

    A signal that comes just before the thread begins to wait for a lock is not seen until that
    wait ends, so one may not do.
    """

    def press() -> None:
        if reached.wait(DEADLINE_S):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while not heard.wait(PRESS_AGAIN_S):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interrupt_cancels_what_the_caller_waits_for(rig: Rig) -> None:
    waiting, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    presser = interrupt_when(waiting, cancelled)
    with pytest.raises(KeyboardInterrupt):
        rig.portal.call(wait)
    presser.join(DEADLINE_S)
    assert cancelled.wait(DEADLINE_S)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_result_that_comes_after_the_interrupt_is_given_back(rig: Rig) -> None:
    waiting, given_back = threading.Event(), threading.Event()
    back: list[object] = []

    async def finish_in_spite_of_it() -> str:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "opened"
        return "never"

    async def discard(result: object) -> None:
        back.append(result)
        given_back.set()

    presser = interrupt_when(waiting, given_back)
    with pytest.raises(KeyboardInterrupt):
        rig.portal.call_or(discard, finish_in_spite_of_it)
    presser.join(DEADLINE_S)
    assert given_back.wait(DEADLINE_S)
    assert back == ["opened"]


def test_a_result_without_an_await_is_given_back_if_its_call_was_given_up(rig: Rig) -> None:
    running, go_on, given_back = threading.Event(), threading.Event(), threading.Event()
    back: list[object] = []

    def take() -> str:
        running.set()
        go_on.wait(DEADLINE_S)
        return "message"

    def discard(result: object) -> None:
        back.append(result)
        given_back.set()

    call = rig.portal.submit(take, discard)
    assert running.wait(DEADLINE_S)
    assert call.cancel()  # as an interrupt does
    go_on.set()
    assert given_back.wait(DEADLINE_S)
    assert back == ["message"]


def test_an_interrupt_as_a_call_wakes_the_loop_leaves_no_later_call_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.portal.run(lambda: None)
    loop = rig.portal._loop
    assert loop is not None

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.portal.run(lambda: None)
    assert rig.portal.submit(lambda: 1).result(DEADLINE_S) == 1


def test_an_interrupt_as_the_thread_starts_leaves_no_thread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.portal.run(lambda: None)
    started[0].join(DEADLINE_S)
    assert not started[0].is_alive()
    assert rig.portal.run(lambda: 1) == 1


def exits() -> None:
    raise SystemExit(3)


def test_an_exit_in_the_clients_thread_reaches_the_caller_and_ends_no_other_call(rig: Rig) -> None:
    with pytest.raises(SystemExit):
        rig.portal.submit(lambda: fail(SystemExit(3))).result(DEADLINE_S)
    with pytest.raises(SystemExit):
        rig.portal.submit(exits).result(DEADLINE_S)
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(DEADLINE_S)

    rig.portal.submit(block)
    assert blocked.wait(DEADLINE_S)
    first = rig.portal.submit(lambda: 1)
    first.add_done_callback(lambda _: exits())
    second = rig.portal.submit(lambda: 2)
    go_on.set()
    assert (first.result(DEADLINE_S), second.result(DEADLINE_S)) == (1, 2)


class Subscribed:
    """The messages of a subscription that has one, and what became of it."""

    def __init__(self) -> None:
        entry: Any = SimpleNamespace(
            batch_size=0, metadata=SimpleNamespace(ordering_key=b"", partition_key="")
        )
        self.messages: list[Message[Any]] = [Message(b"", entry)]
        self.outcomes: list[str] = []
        self.refusal: ClientError | None = None

    def __aiter__(self) -> "Subscribed":
        return self

    async def __anext__(self) -> Message[Any]:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop()

    async def ack(self, _message: Message[Any]) -> None:
        self.outcomes.append("ack")

    async def nack(self, _message: Message[Any]) -> None:
        self.outcomes.append("nack")

    async def run(self, handle: Any, *, concurrency: int, ordered_by_key: bool) -> None:
        consumer: Any = self
        await run_listener(consumer, handle, concurrency, ordered_by_key=ordered_by_key)


def test_an_exit_in_a_handler_ends_run(rig: Rig) -> None:
    inner = Subscribed()
    consumer: Any = SimpleNamespace(_portal=rig.portal, _inner=inner)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            run_in_threads(consumer, lambda _: exits(), 1, ordered_by_key=False)
        except SystemExit as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert [error.code for error in raised if isinstance(error, SystemExit)] == [3]
    assert inner.outcomes == ["nack"]


def test_a_handler_may_close_the_client(rig: Rig) -> None:
    inner = Subscribed()
    consumer: Any = SimpleNamespace(_portal=rig.portal, _inner=inner)

    def handle(_message: Message[Any]) -> None:
        inner.refusal = AlreadyClosed("The consumer is closed")
        rig.portal.close()

    run_in_threads(consumer, handle, 1, ordered_by_key=False)
    assert rig.finished == 1


def test_closing_fails_the_calls_of_other_threads(rig: Rig) -> None:
    waiting = threading.Event()
    errors: list[BaseException] = []

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            rig.portal.call(wait)
        except AlreadyClosed as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert waiting.wait(DEADLINE_S)
    rig.portal.close()
    thread.join(DEADLINE_S)
    assert len(errors) == 1
    with pytest.raises(AlreadyClosed):
        rig.portal.call(lambda: give(1))
    rig.portal.close()
    assert rig.finished == 1
    assert rig.portal.peek(lambda: "still readable") == "still readable"
    rig.portal.finish(lambda: fail(AssertionError("the parts were closed already")))


def test_a_full_queue_makes_callers_wait(rig: Rig) -> None:
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(DEADLINE_S)

    rig.portal.submit(block)
    assert blocked.wait(DEADLINE_S)
    futures = [rig.portal.submit(lambda: None) for _ in range(QUEUED_CALLS_MAX)]
    beyond: list[Any] = []
    thread = threading.Thread(target=lambda: beyond.append(rig.portal.submit(lambda: None)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "it did not wait for room"
    go_on.set()
    thread.join(DEADLINE_S)
    for future in [*futures, *beyond]:
        assert future.result(DEADLINE_S) is None
    assert len(beyond) == 1


def test_a_call_from_the_clients_own_thread_is_refused(rig: Rig) -> None:
    def inside() -> None:
        rig.portal.call(lambda: give(1))

    with pytest.raises(ClientError, match="wait for the thread that makes it"):
        rig.portal.run(inside)
    with pytest.raises(ClientError, match="close it elsewhere"):
        rig.portal.run(rig.portal.close)


def test_a_client_that_is_collected_ends_its_thread() -> None:
    client = Client("pulsar://127.0.0.1:1", operation_timeout_s=0.2)
    with pytest.raises(ClientError):
        client.partitions("t")
    thread = client._portal._thread
    assert thread is not None
    del client
    gc.collect()  # the error's traceback refers to the client
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_collection_in_the_thread_that_holds_the_lock_ends_the_client(rig: Rig) -> None:
    def collected() -> None:
        with rig.portal._lock:
            rig.portal.forsake()

    rig.portal.submit(collected)
    thread = rig.portal._thread
    assert thread is not None
    thread.join(DEADLINE_S / 4)
    assert not thread.is_alive()
    assert rig.finished == 1


def test_use_after_a_fork_fails_clearly() -> None:
    with Client("pulsar://127.0.0.1:1", operation_timeout_s=0.2) as client:
        with pytest.raises(ClientError):
            client.partitions("t")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.partitions("t")
            except UsedAfterFork:
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


FORGETS_TO_CLOSE = """
import sys
from magnetar.client.sync.portal import Portal

async def finish():
    sys.stdout.write("finished")

async def work():
    pass

portal = Portal(finish)
portal.call(work)
"""


def test_the_exit_of_the_interpreter_closes_what_is_open() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETS_TO_CLOSE],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("finished", "")
