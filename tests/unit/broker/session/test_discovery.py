"""Look-ups, lists of topics, and watches on lists."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.broker.lifecycle.world import World, named
from tests.unit.broker.session.stage import TOPIC, Client, broker, client_of, loaded

from magnetar.broker.ownership.always import AlwaysOwned
from magnetar.broker.ownership.location import Located
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.broker.session import discovery
from magnetar.broker.session.topic_pattern import PATTERN_CHARACTERS_MAX, compiled, matching
from magnetar.core.errors import MetadataError, NotAllowed, ServerError
from magnetar.core.names import TopicName, parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.topics_hash import topics_hash

LOOKUP, LOOKED_UP = CommandType.LOOKUP, CommandType.LOOKUP_RESPONSE
LISTED = CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE
WATCHED = CommandType.WATCH_TOPIC_LIST_SUCCESS
NAMESPACE = "public/default"
HERE = BrokerRecord(
    "here:80",
    1,
    "here",
    6650,
    Urls("pulsar://here:6650", "http://here", "pulsar+ssl://here:6651"),
    listeners={"inner": Urls("pulsar://inner:6650", "http://inner")},
)
OTHER = msgspec.structs.replace(
    HERE, broker_id="other:80", urls=Urls("pulsar://other:6650", "http://other"), listeners={}
)


# -- look-ups


class Elsewhere(AlwaysOwned):
    """Knows where topics are that this broker does not serve."""

    def __init__(self, w: World, located: Located | Exception) -> None:
        super().__init__(w.service.resources, w.service.open_topics)
        self.located = located
        self.asked: list[tuple[TopicName, bool]] = []

    def owns(self, name: TopicName) -> bool:
        return False

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:
        self.asked.append((name, authoritative))
        if isinstance(self.located, Exception):
            raise self.located
        return self.located


def lookup(**fields: Any) -> pb.CommandLookupTopic:
    return pb.CommandLookupTopic(topic=TOPIC, request_id=7, **fields)


@pytest.mark.parametrize(
    ("listener", "url", "tls"),
    [
        ("", "pulsar://here:6650", "pulsar+ssl://here:6651"),
        ("inner", "pulsar://inner:6650", ""),
    ],
)
@pytest.mark.parametrize("only", [True, False])
async def test_a_topic_of_this_broker_is_found_at_the_address_of_the_clients_listener(
    listener: str, url: str, tls: str, only: bool
) -> None:
    async with client_of() as client:
        client.session.service.record, client.session.service.only_broker = HERE, only
        client.say(LOOKUP, lookup(advertised_listener_name=listener))
        (told,) = client.told()  # at once: no task is needed for that
        answer: Any = told.message
        assert (answer.request_id, answer.response) == (7, pb.CommandLookupTopicResponse.Connect)
        assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == (url, tls)
        assert (answer.authoritative, answer.proxy_through_service_url) == (True, only)
        assert client.session.link.listener == listener


@pytest.mark.parametrize("redirect", [True, False])
@pytest.mark.parametrize("authoritative", [True, False])
async def test_a_topic_of_another_broker_is_found_there_or_by_asking_that_one(
    redirect: bool, authoritative: bool
) -> None:
    async with client_of() as client:
        ownership = Elsewhere(client.world, Located(OTHER, redirect))
        client.session.service.topics.ownership = ownership
        answer = await client.ask(LOOKUP, lookup(authoritative=authoritative), LOOKED_UP)
        kinds = pb.CommandLookupTopicResponse
        assert answer.response == (kinds.Redirect if redirect else kinds.Connect)
        assert (answer.brokerServiceUrl, answer.HasField("brokerServiceUrlTls")) == (
            "pulsar://other:6650",
            False,
        )
        assert ownership.asked == [(parse_topic(TOPIC), authoritative)]


@pytest.mark.parametrize("here", [True, False])
async def test_a_listener_that_the_broker_does_not_have_gets_pulsars_text(here: bool) -> None:
    async with client_of() as client:
        service = client.session.service
        service.record = HERE
        if not here:
            service.topics.ownership = Elsewhere(client.world, Located(OTHER))
        answer = await client.ask(LOOKUP, lookup(advertised_listener_name="outer"), LOOKED_UP)
        assert (answer.request_id, answer.response) == (7, pb.CommandLookupTopicResponse.Failed)
        assert answer.error == ServerError.SERVICE_NOT_READY
        assert answer.message == "the broker do not have outer listener"


async def test_a_look_up_that_fails_is_answered_in_its_own_form() -> None:
    async with client_of() as client:
        service = client.session.service
        service.topics.ownership = Elsewhere(client.world, MetadataError("away"))
        answer = await client.ask(LOOKUP, lookup(), LOOKED_UP)
        assert (answer.request_id, answer.response) == (7, pb.CommandLookupTopicResponse.Failed)
        assert (answer.error, answer.message) == (ServerError.METADATA_ERROR, "away")
        service.stopping = True
        client.say(LOOKUP, lookup())
        (told,) = client.told()
        refused: Any = told.message
        assert (refused.error, refused.request_id) == (ServerError.SERVICE_NOT_READY, 7)


@pytest.mark.parametrize("creates", [True, False])
async def test_the_partitions_of_a_topic_are_counted_or_made_if_the_client_allows_it(
    creates: bool,
) -> None:
    settings = {"auto_topic_creation_type": "partitioned", "default_partitions": 3}
    async with client_of(**settings) as client:
        topics = client.session.service.topics
        await topics.create_partitioned(named("p"), 5, {})
        ask = pb.CommandPartitionedTopicMetadata(request_id=7, topic=f"{TOPIC}-none")
        kinds = (CommandType.PARTITIONED_METADATA, ask, CommandType.PARTITIONED_METADATA_RESPONSE)
        ask.metadata_auto_creation_enabled = creates
        answer = await client.ask(*kinds)
        kind = pb.CommandPartitionedTopicMetadataResponse
        if creates:
            assert (answer.request_id, answer.partitions, answer.response) == (7, 3, kind.Success)
        else:
            assert (answer.request_id, answer.response) == (7, kind.Failed)
            assert answer.error == ServerError.TOPIC_NOT_FOUND
            assert answer.message
        ask.topic = str(named("p"))
        assert (await client.ask(*kinds)).partitions == 5
        ask.topic = "nonsense://a/b/c"
        answer = await client.ask(*kinds)
        assert (answer.response, answer.error) == (kind.Failed, ServerError.INVALID_TOPIC_NAME)


# -- lists


async def names_of(client: Client, **fields: Any) -> Any:
    ask = pb.CommandGetTopicsOfNamespace(request_id=7, namespace=NAMESPACE, **fields)
    return await client.ask(CommandType.GET_TOPICS_OF_NAMESPACE, ask, LISTED)


async def test_a_list_has_the_topics_of_its_kind_and_not_the_brokers_own() -> None:
    async with client_of() as client:
        w = client.world
        for local in ("b", "a", "__change_events"):
            await w.topic(local)
        light = parse_topic(f"non-persistent://{NAMESPACE}/light")
        await w.service.topics.get_or_open(light, create=True)
        stored = [str(named(local)) for local in "ab"]
        modes = pb.CommandGetTopicsOfNamespace
        for mode, expected in (
            (modes.PERSISTENT, stored),
            (modes.NON_PERSISTENT, [str(light)]),
            (modes.ALL, [str(light), *stored]),
        ):
            answer = await names_of(client, mode=mode)
            assert (answer.request_id, list(answer.topics)) == (7, expected)
            assert (answer.changed, answer.filtered) == (True, False)
            assert answer.topics_hash == topics_hash(expected)
        answer = await names_of(client, topics_pattern=f"{NAMESPACE}/a")
        assert (list(answer.topics), answer.filtered) == ([stored[0]], True)
        answer = await names_of(
            client, topics_pattern=f"{NAMESPACE}/a", topics_hash=topics_hash(stored[:1])
        )
        assert (list(answer.topics), answer.changed) == ([], False)


async def test_a_list_is_made_only_while_its_client_reads() -> None:
    """Otherwise each requested list would wait in memory."""
    async with client_of() as client:
        await client.world.topic("a")
        client.socket.writable = False
        for number in (7, 8):
            ask = pb.CommandGetTopicsOfNamespace(request_id=number, namespace=NAMESPACE)
            client.say(CommandType.GET_TOPICS_OF_NAMESPACE, ask)
        for _ in range(100):
            await asyncio.sleep(0)
        assert client.told() == []
        await client.world.topic("b")
        client.socket.writable = True
        client.session.drained()
        await client.quiet()
        told: list[Any] = [each.message for each in client.told()]
        assert [each.request_id for each in told] == [7, 8]
        assert list(told[0].topics) == [str(named("a")), str(named("b"))]


NAMES = [
    "persistent://public/default/t",
    "persistent://public/default/t-partition-0",
    "persistent://public/default/t-partition-x",
    "persistent://public/default/tt",
    "non-persistent://public/default/t",
]


@pytest.mark.parametrize(
    ("pattern", "which"),
    [
        ("public/default/t", (0, 1, 4)),
        ("persistent://public/default/t", (0, 1, 4)),
        ("public/default/t.*", (0, 1, 2, 3, 4)),
        ("public/default/t-partition-0", ()),
        ("default/t", ()),
        (r"\Qpublic/default/t\E", (0, 1, 4)),
        ("public/default/t-.*", (2,)),
    ],
)
def test_a_pattern_is_of_whole_names_without_domain_and_partition(
    pattern: str, which: tuple[int, ...]
) -> None:
    assert matching(NAMES, compiled(pattern)) == [NAMES[at] for at in which]


def test_a_pattern_may_be_so_long_and_must_be_one() -> None:
    compiled("x" * PATTERN_CHARACTERS_MAX)
    with pytest.raises(NotAllowed, match="longer than maximum: 51 > 50"):
        compiled("x" * (PATTERN_CHARACTERS_MAX + 1))
    with pytest.raises(NotAllowed, match=r"Invalid topics pattern '\('"):
        compiled("(")


# -- watches


def watch(watcher_id: int = 4, pattern: str = f"{NAMESPACE}/t.*", **fields: Any) -> Any:
    return pb.CommandWatchTopicList(
        request_id=watcher_id,
        watcher_id=watcher_id,
        namespace=NAMESPACE,
        topics_pattern=pattern,
        **fields,
    )


async def watches(client: Client, *arguments: Any, **fields: Any) -> Any:
    return await client.ask(CommandType.WATCH_TOPIC_LIST, watch(*arguments, **fields), WATCHED)


async def test_a_watch_begins_with_the_existing_topics_unless_the_client_knows_them() -> None:
    async with client_of() as client:
        for local in ("t2", "t1", "other", "__change_events"):
            await client.world.topic(local)
        answer = await watches(client)
        expected = [str(named("t1")), str(named("t2"))]
        assert (answer.request_id, answer.watcher_id) == (4, 4)
        assert (list(answer.topic), answer.topics_hash) == (expected, topics_hash(expected))
        answer = await watches(client, 5, topics_hash=topics_hash(expected))
        assert (list(answer.topic), answer.topics_hash) == ([], topics_hash(expected))


async def test_a_watch_reports_each_change_once_and_nothing_else() -> None:
    async with client_of() as client:
        w = client.world
        await w.topic("t1")
        await watches(client)
        for local in ("other", "t2", "__t"):
            await w.topic(local)
        await w.service.topics.get_or_open(
            parse_topic(f"non-persistent://{NAMESPACE}/t3"), create=True
        )
        await client.quiet()
        (told,) = client.told()
        update: Any = told.message
        both = [str(named("t1")), str(named("t2"))]
        assert (update.watcher_id, list(update.new_topics)) == (4, both[1:])
        assert update.topics_hash == topics_hash(both)
        await w.service.topics.delete(named("t1"), force=True)
        await client.quiet()
        (told,) = client.told()
        update = told.message
        assert (list(update.new_topics), list(update.deleted_topics)) == ([], both[:1])
        assert update.topics_hash == topics_hash(both[1:])


async def test_a_topic_that_exists_only_while_the_client_does_not_read_is_not_reported() -> None:
    async with client_of() as client:
        w = client.world
        await w.topic("t1")
        await watches(client)
        client.socket.writable = False
        await w.topic("t2")
        await w.service.topics.delete(named("t2"), force=True)
        client.socket.writable = True
        client.session.drained()
        assert client.told() == []
        client.socket.writable = False
        await w.topic("t3")
        client.session.drained()
        assert client.told() == [], "it is full again"
        client.socket.writable = True
        client.session.drained()
        client.session.drained()
        (told,) = client.told()
        update: Any = told.message
        assert list(update.new_topics) == [str(named("t3"))]


async def test_a_closed_or_replaced_watch_reports_nothing() -> None:
    async with client_of() as client:
        news = client.world.service.topics.news
        await watches(client)
        await watches(client, 4, f"{NAMESPACE}/u.*")
        assert (len(client.session.watchers), len(news)) == (1, 1)
        await client.world.topic("t1")
        await client.quiet()
        assert client.told() == []
        close = pb.CommandWatchTopicListClose(request_id=8, watcher_id=4)
        for _ in range(2):
            client.say(CommandType.WATCH_TOPIC_LIST_CLOSE, close)
            assert client.kinds() == ["SUCCESS"]
        await client.world.topic("u1")
        await client.quiet()
        assert client.told() == []
        assert (client.session.watchers, len(news)) == ({}, 0)


async def test_a_connection_may_have_so_many_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "WATCHERS_PER_CONNECTION_MAX", 2)
    async with client_of() as client:
        await watches(client, 1)
        await watches(client, 2)
        error = await client.ask(CommandType.WATCH_TOPIC_LIST, watch(3), CommandType.ERROR)
        assert (error.request_id, error.error) == (3, ServerError.NOT_ALLOWED_ERROR)
        assert set(client.session.watchers) == {1, 2}


async def test_a_watch_whose_list_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker() as w:
        await loaded(w)
        client = Client(w).connect()

        async def fails(*_: Any) -> list[TopicName]:
            raise MetadataError("away")

        with monkeypatch.context() as patch:
            patch.setattr(w.service.topics, "names", fails)
            error = await client.ask(CommandType.WATCH_TOPIC_LIST, watch(), CommandType.ERROR)
        assert (error.request_id, error.error) == (4, ServerError.METADATA_ERROR)
        assert client.session.watchers == {}
        assert w.service.topics.news._listeners == {}
        assert list((await watches(client)).topic) == [TOPIC]


async def test_a_watch_that_fails_late_leaves_the_one_that_has_replaced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client_of() as client:
        topics = client.world.service.topics
        names, reached, go_on = topics.names, asyncio.Event(), asyncio.Event()

        async def fails(*_: Any) -> list[TopicName]:
            monkeypatch.setattr(topics, "names", names)
            reached.set()
            await go_on.wait()
            raise MetadataError("away")

        monkeypatch.setattr(topics, "names", fails)
        client.say(CommandType.WATCH_TOPIC_LIST, watch())
        await reached.wait()
        client.say(CommandType.WATCH_TOPIC_LIST, watch())
        first = client.session.watchers[4]
        while (second := client.session.watchers[4]) is first:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        go_on.set()
        await client.quiet()
        assert client.kinds() == ["ERROR", "WATCH_TOPIC_LIST_SUCCESS"]
        assert client.session.watchers == {4: second}
        await client.world.topic("t1")
        await client.quiet()
        assert client.kinds() == ["WATCH_TOPIC_UPDATE"]


async def test_a_watch_that_is_closed_before_its_list_is_read_listens_to_nothing() -> None:
    async with client_of() as client:
        news = client.world.service.topics.news
        client.socket.writable = False  # its list waits until the client reads
        client.say(CommandType.WATCH_TOPIC_LIST, watch())
        for _ in range(5):
            await client.world.service.topics.names(named("t").namespace, "persistent")
        close = pb.CommandWatchTopicListClose(request_id=8, watcher_id=4)
        client.say(CommandType.WATCH_TOPIC_LIST_CLOSE, close)
        client.socket.writable = True
        client.session.drained()
        await client.quiet()
        assert (client.session.watchers, len(news)) == ({}, 0)
