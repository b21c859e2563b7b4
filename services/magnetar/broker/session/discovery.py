"""Finding topics: partitions, lookup, lists, and watches on lists."""

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.ownership.located import HERE, Located
from magnetar.broker.system_topics import is_system_topic
from magnetar.core.errors import MagnetarError, NotAllowed, ServiceNotReady
from magnetar.core.names import PARTITION_SUFFIX, NamespaceName, TopicName, parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.topics_hash import topics_hash

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session

PATTERN_CHARACTERS_MAX: Final = 50
WATCHERS_PER_CONNECTION_MAX: Final = 1_000

_PartitionedResponse = pb.CommandPartitionedTopicMetadataResponse
_LookupResponse = pb.CommandLookupTopicResponse
_Mode = pb.CommandGetTopicsOfNamespace


def on_partitioned_metadata(
    session: "Session", command: pb.CommandPartitionedTopicMetadata
) -> Coroutine[Any, Any, None]:
    return _partitioned_metadata(session, command)


async def _partitioned_metadata(
    session: "Session", command: pb.CommandPartitionedTopicMetadata
) -> None:
    response = _PartitionedResponse(request_id=command.request_id)
    try:
        name = parse_topic(command.topic)
        response.partitions = await session.service.topics.partitions_or_create(
            name, auto_create=command.metadata_auto_creation_enabled
        )
        response.response = _PartitionedResponse.Success
    except MagnetarError as error:
        response.response = _PartitionedResponse.Failed
        response.error = int(error.code)  # type: ignore[assignment]
        response.message = error.message
    session.link.answer(CommandType.PARTITIONED_METADATA_RESPONSE, response)


def on_lookup(
    session: "Session", command: pb.CommandLookupTopic
) -> Coroutine[Any, Any, None] | None:
    """Which broker serves a topic.

    Who asks for a listener that the broker does not have gets Pulsar's text, by which clients know
    that to try again is of no use.
    """
    session.link.listener = command.advertised_listener_name
    try:
        name = parse_topic(command.topic)
        if session.service.stopping:
            raise ServiceNotReady("The broker is shutting down, please retry")
        if not session.service.topics.ownership.owns(name):
            return _lookup(session, command, name)
        _answer_lookup(session, command, HERE)
    except MagnetarError as error:
        _refuse_lookup(session, command, error)
    return None


async def _lookup(session: "Session", command: pb.CommandLookupTopic, name: TopicName) -> None:
    try:
        located = await session.service.topics.ownership.locate(
            name, authoritative=command.authoritative
        )
        _answer_lookup(session, command, located)
    except MagnetarError as error:
        _refuse_lookup(session, command, error)


def _answer_lookup(session: "Session", command: pb.CommandLookupTopic, located: Located) -> None:
    listener = command.advertised_listener_name
    urls = (located.broker or session.service.record).reached_by(listener)
    if urls is None:
        raise ServiceNotReady(f"the broker do not have {listener} listener")
    response = _LookupResponse(request_id=command.request_id, authoritative=True)
    response.brokerServiceUrl = urls.service_url
    if urls.service_url_tls:
        response.brokerServiceUrlTls = urls.service_url_tls
    response.response = _LookupResponse.Redirect if located.redirect else _LookupResponse.Connect
    response.proxy_through_service_url = session.service.only_broker
    session.link.answer(CommandType.LOOKUP_RESPONSE, response)


def _refuse_lookup(
    session: "Session", command: pb.CommandLookupTopic, error: MagnetarError
) -> None:
    response = _LookupResponse(request_id=command.request_id, response=_LookupResponse.Failed)
    response.error = int(error.code)  # type: ignore[assignment]
    response.message = error.message
    session.link.answer(CommandType.LOOKUP_RESPONSE, response)


def on_topics_of_namespace(
    session: "Session", command: pb.CommandGetTopicsOfNamespace
) -> Coroutine[Any, Any, None]:
    return _in_turn(session, command)


async def _in_turn(session: "Session", command: pb.CommandGetTopicsOfNamespace) -> None:
    async with session.listing():
        await _topics_of_namespace(session, command)


async def _topics_of_namespace(session: "Session", command: pb.CommandGetTopicsOfNamespace) -> None:
    namespace = NamespaceName.parse(command.namespace)
    names: list[TopicName] = []
    topics = session.service.topics
    if command.mode in (_Mode.PERSISTENT, _Mode.ALL):
        names += await topics.names(namespace, "persistent")
    if command.mode in (_Mode.NON_PERSISTENT, _Mode.ALL):
        names += await topics.names(namespace, "non-persistent")
    found = sorted(str(name) for name in names if not is_system_topic(name))
    response = pb.CommandGetTopicsOfNamespaceResponse(request_id=command.request_id)
    if command.topics_pattern:
        found = matching(found, compiled(command.topics_pattern))
        response.filtered = True
    response.topics_hash = topics_hash(found)
    response.changed = response.topics_hash != command.topics_hash
    if response.changed:
        response.topics.extend(found)
    session.link.answer(CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE, response)


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str, /) -> object | None: ...


def compiled(pattern: str) -> Pattern:
    """A client's pattern, as matched against names without domain and partition suffix.

    RE2, as in Pulsar: its time is linear, so that no client can stall the broker with a pattern.
    """
    import re2

    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise NotAllowed(f"Pattern longer than maximum: {len(pattern)} > {PATTERN_CHARACTERS_MAX}")
    pattern = pattern.replace("\\Q", "").replace("\\E", "")
    _, found, bare = pattern.partition("://")
    try:
        result: Pattern = re2.compile(bare if found else pattern)
    except re2.error as error:
        raise NotAllowed(f"Invalid topics pattern '{pattern}': {error}") from error
    return result


def matching(names: Iterable[str], pattern: Pattern) -> list[str]:
    """The names whose topic (without domain and partition suffix) matches as a whole."""
    return [name for name in names if pattern.fullmatch(_bare(name))]


def _bare(name: str) -> str:
    bare = name.partition("://")[2]
    head, found, tail = bare.rpartition(PARTITION_SUFFIX)
    return head if found and tail.isdigit() else bare


# -- watches (PIP-145) -------------------------------------------------------------------------


class TopicListWatcher:
    """Tells one client about topics of a namespace that come and go.

    While the client does not read, changes are gathered, and leave as one update (`send`). So a
    watcher holds at most the names that its client was told and those that exist.
    """

    __slots__ = (
        "_closed",
        "_id",
        "_namespace",
        "_pattern",
        "_session",
        "_started",
        "_topics",
        "_unsent",
    )

    def __init__(
        self,
        session: "Session",
        watcher_id: int,
        namespace: NamespaceName,
        pattern: Pattern,
    ) -> None:
        self._session = session
        self._id = watcher_id
        self._namespace = namespace
        self._pattern = pattern
        self._topics: set[str] = set()
        """As the client knows them."""
        self._unsent: dict[str, bool] = {}
        """Whether a topic exists of which the client knows otherwise."""
        self._started = self._closed = False

    def listen(self) -> None:
        """Notes changes from now on; the list that `start` takes is to be read after this."""
        if not self._closed:
            self._session.service.topics.add_listener(self._namespace, self._changed)

    def start(self, names: Iterable[str]) -> list[str]:
        """Takes the first list; returns what of it matches. Changes noted meanwhile are newer."""
        self._topics.update(matching(names, self._pattern))
        for full, exists in self._unsent.items():
            if exists:
                self._topics.add(full)
            else:
                self._topics.discard(full)
        self._unsent.clear()
        self._started = True
        return sorted(self._topics)

    def close(self) -> None:
        self._closed = True
        self._session.service.topics.remove_listener(self._namespace, self._changed)

    def send(self) -> None:
        """Sends what has changed, if the client reads."""
        if not self._unsent or not self._started or not self._session.wire.writable:
            return
        update = pb.CommandWatchTopicUpdate(watcher_id=self._id)
        for full, exists in self._unsent.items():
            if exists:
                self._topics.add(full)
                update.new_topics.append(full)
            else:
                self._topics.discard(full)
                update.deleted_topics.append(full)
        self._unsent.clear()
        update.topics_hash = topics_hash(sorted(self._topics))
        self._session.link.answer(CommandType.WATCH_TOPIC_UPDATE, update)

    def _changed(self, name: TopicName, exists: bool) -> None:
        if name.namespace != self._namespace or not name.persistent or is_system_topic(name):
            return
        full = str(name)
        if not self._pattern.fullmatch(_bare(full)):
            return
        if self._started and exists == (full in self._topics):
            self._unsent.pop(full, None)
        else:
            self._unsent[full] = exists
            self.send()


def on_watch_topic_list(
    session: "Session", command: pb.CommandWatchTopicList
) -> Coroutine[Any, Any, None]:
    return _watch(session, command)


async def _watch(session: "Session", command: pb.CommandWatchTopicList) -> None:
    namespace = NamespaceName.parse(command.namespace)
    if len(session.watchers) >= WATCHERS_PER_CONNECTION_MAX:
        raise NotAllowed(f"This connection has {len(session.watchers)} topic watchers already")
    if (former := session.watchers.pop(command.watcher_id, None)) is not None:
        former.close()
    watcher = TopicListWatcher(
        session, command.watcher_id, namespace, compiled(command.topics_pattern)
    )
    session.watchers[command.watcher_id] = watcher
    try:
        async with session.listing():
            await _start_watch(session, command, namespace, watcher)
    except BaseException:
        watcher.close()
        if session.watchers.get(command.watcher_id) is watcher:
            del session.watchers[command.watcher_id]
        raise


async def _start_watch(
    session: "Session",
    command: pb.CommandWatchTopicList,
    namespace: NamespaceName,
    watcher: TopicListWatcher,
) -> None:
    watcher.listen()
    names = await session.service.topics.names(namespace, "persistent")
    found = watcher.start(str(name) for name in names if not is_system_topic(name))
    success = pb.CommandWatchTopicListSuccess(
        request_id=command.request_id, watcher_id=command.watcher_id
    )
    success.topics_hash = topics_hash(found)
    if success.topics_hash != command.topics_hash:
        success.topic.extend(found)
    session.link.answer(CommandType.WATCH_TOPIC_LIST_SUCCESS, success)


def on_watch_topic_list_close(session: "Session", command: pb.CommandWatchTopicListClose) -> None:
    watcher = session.watchers.pop(command.watcher_id, None)
    if watcher is not None:
        watcher.close()
    session.link.success(command.request_id)
