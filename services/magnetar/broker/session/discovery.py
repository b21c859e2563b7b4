"""Commands that find topics: partitions, look-up, lists, and watches on lists."""

from collections.abc import Coroutine
from typing import Any, Final

from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.ownership.location import HERE, Located
from magnetar.broker.session.session import Session
from magnetar.broker.session.topic_pattern import compiled, matching
from magnetar.broker.session.topic_watcher import TopicListWatcher
from magnetar.broker.transactions.assignment import ASSIGN_TOPIC
from magnetar.core.errors import MagnetarError, NotAllowed, ServiceNotReady
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import error_number
from magnetar.wire.topics_hash import topics_hash

WATCHERS_PER_CONNECTION_MAX: Final = 1_000

_PartitionedResponse = pb.CommandPartitionedTopicMetadataResponse
_LookupResponse = pb.CommandLookupTopicResponse
_Mode = pb.CommandGetTopicsOfNamespace


def on_partitioned_metadata(
    session: Session, command: pb.CommandPartitionedTopicMetadata
) -> Coroutine[Any, Any, None]:
    """Answers a topic's partition count; may create the topic's partitions."""
    return _partitioned_metadata(session, command)


async def _partitioned_metadata(
    session: Session, command: pb.CommandPartitionedTopicMetadata
) -> None:
    response = _PartitionedResponse(request_id=command.request_id)
    try:
        name = parse_topic(command.topic)
        transactions = session.service.transactions
        if transactions is not None and name == ASSIGN_TOPIC:
            response.partitions = await transactions.coordinator_count()
        else:
            response.partitions = await session.service.topics.partitions_or_create(
                name, auto_create=command.metadata_auto_creation_enabled
            )
        response.response = _PartitionedResponse.Success
    except MagnetarError as error:
        refuse_partitioned_metadata(session, command, error)
    else:
        session.link.answer(CommandType.PARTITIONED_METADATA_RESPONSE, response)


def refuse_partitioned_metadata(
    session: Session, command: pb.CommandPartitionedTopicMetadata, error: MagnetarError
) -> None:
    """Answers PARTITIONED_METADATA with an error."""
    response = _PartitionedResponse(request_id=command.request_id)
    response.response = _PartitionedResponse.Failed
    response.error = error_number(error.code)
    response.message = error.message
    session.link.answer(CommandType.PARTITIONED_METADATA_RESPONSE, response)


def on_lookup(session: Session, command: pb.CommandLookupTopic) -> Coroutine[Any, Any, None] | None:
    """Answers which broker serves a topic.

    A request for a listener that the broker does not have is refused with Pulsar's text, by which
    clients recognize that a retry is useless.
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
        refuse_lookup(session, command, error)
    return None


async def _lookup(session: Session, command: pb.CommandLookupTopic, name: TopicName) -> None:
    try:
        located = await session.service.topics.ownership.locate(
            name, authoritative=command.authoritative
        )
        _answer_lookup(session, command, located)
    except MagnetarError as error:
        refuse_lookup(session, command, error)


def _answer_lookup(session: Session, command: pb.CommandLookupTopic, located: Located) -> None:
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


def refuse_lookup(session: Session, command: pb.CommandLookupTopic, error: MagnetarError) -> None:
    """Answers LOOKUP with an error."""
    response = _LookupResponse(request_id=command.request_id, response=_LookupResponse.Failed)
    response.error = error_number(error.code)
    response.message = error.message
    session.link.answer(CommandType.LOOKUP_RESPONSE, response)


def on_topics_of_namespace(
    session: Session, command: pb.CommandGetTopicsOfNamespace
) -> Coroutine[Any, Any, None]:
    """Answers the topics of a namespace."""
    return _list_in_turn(session, command)


async def _list_in_turn(session: Session, command: pb.CommandGetTopicsOfNamespace) -> None:
    async with session.listing(CommandType.GET_TOPICS_OF_NAMESPACE, command):
        await _topics_of_namespace(session, command)


async def _topics_of_namespace(session: Session, command: pb.CommandGetTopicsOfNamespace) -> None:
    namespace = NamespaceName.parse(command.namespace)
    names: list[TopicName] = []
    topics = session.service.topics
    if command.mode in (_Mode.PERSISTENT, _Mode.ALL):
        names += await topics.names(namespace, "persistent")
    if command.mode in (_Mode.NON_PERSISTENT, _Mode.ALL):
        names += await topics.names(namespace, "non-persistent")
    session.check_again(CommandType.GET_TOPICS_OF_NAMESPACE, command)
    matches = sorted(str(name) for name in names if not is_system_topic(name))
    response = pb.CommandGetTopicsOfNamespaceResponse(request_id=command.request_id)
    if command.topics_pattern:
        matches = matching(matches, compiled(command.topics_pattern))
        response.filtered = True
    response.topics_hash = topics_hash(matches)
    response.changed = response.topics_hash != command.topics_hash
    if response.changed:
        response.topics.extend(matches)
    session.link.answer(CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE, response)


def on_watch_topic_list(
    session: Session, command: pb.CommandWatchTopicList
) -> Coroutine[Any, Any, None]:
    """Starts a watch on the topics of a namespace."""
    return _watch(session, command)


async def _watch(session: Session, command: pb.CommandWatchTopicList) -> None:
    namespace = NamespaceName.parse(command.namespace)
    if len(session.watchers) >= WATCHERS_PER_CONNECTION_MAX:
        raise NotAllowed(f"This connection has {len(session.watchers)} topic watchers already")
    if (former := session.watchers.pop(command.watcher_id, None)) is not None:
        former.close()
    watcher = TopicListWatcher(
        session.service.topics,
        session.link,
        command.watcher_id,
        namespace,
        compiled(command.topics_pattern),
    )
    session.watchers[command.watcher_id] = watcher
    try:
        async with session.listing(CommandType.WATCH_TOPIC_LIST, command):
            await _start_watch(session, command, namespace, watcher)
    except BaseException:
        watcher.close()
        if session.watchers.get(command.watcher_id) is watcher:
            del session.watchers[command.watcher_id]
        raise


async def _start_watch(
    session: Session,
    command: pb.CommandWatchTopicList,
    namespace: NamespaceName,
    watcher: TopicListWatcher,
) -> None:
    watcher.listen()
    names = await session.service.topics.names(namespace, "persistent")
    session.check_again(CommandType.WATCH_TOPIC_LIST, command)
    matches = watcher.start(str(name) for name in names if not is_system_topic(name))
    success = pb.CommandWatchTopicListSuccess(
        request_id=command.request_id, watcher_id=command.watcher_id
    )
    success.topics_hash = topics_hash(matches)
    if success.topics_hash != command.topics_hash:
        success.topic.extend(matches)
    session.link.answer(CommandType.WATCH_TOPIC_LIST_SUCCESS, success)


def on_watch_topic_list_close(session: Session, command: pb.CommandWatchTopicListClose) -> None:
    """Ends a watch; succeeds even if it is unknown."""
    watcher = session.watchers.pop(command.watcher_id, None)
    if watcher is not None:
        watcher.close()
    session.link.success(command.request_id)
