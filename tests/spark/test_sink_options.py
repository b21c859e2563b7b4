"""The options of a write: every mistake is refused by its name."""

import pickle

import pytest

from magnetar.core.errors import PreconditionFailed
from magnetar.wire._pb.PulsarApi_pb2 import CompressionType
from magnetar_spark.sink.options import WriteOptions

URL = "pulsar://localhost:6650"


def parse(*, streaming: bool = False, **options: str) -> WriteOptions:
    given = {"service.url": URL, "topic": "t"}
    given.update({name.replace("__", "."): value for name, value in options.items()})
    return WriteOptions.parse({k: v for k, v in given.items() if v}, streaming=streaming)


def test_the_connectors_options_are_parsed_whatever_their_case() -> None:
    options = WriteOptions.parse(
        {
            "SERVICE.URL": "pulsar+ssl://a:6651,b",
            "Topic": "tenant/ns/t",
            "pulsar.producer.compressiontype": "zstd",
            "pulsar.producer.batchingMaxMessages": "7",
            "pulsar.producer.sendTimeoutMs": "1500",
            "pulsar.producer.blockIfQueueFull": "true",
            "pulsar.producer.hashingScheme": "Murmur3_32Hash",
            "pulsar.client.tlsTrustCertsFilePath": "/ca.pem",
            "checkpointLocation": "/c",
        },
        streaming=True,
    )
    assert options.producer.compression == CompressionType.ZSTD
    assert options.producer.batch_messages == 7
    assert options.producer.send_timeout_s == 1.5
    assert options.producer.murmur_hash
    assert options.client.trust_file == "/ca.pem"
    assert options.exactly_once is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"service__url": ""}, "service.url"),
        ({"service__url": "http://localhost:8080"}, "service.url"),
        ({"topic": "a/b"}, "topic 'a/b'"),
        ({"admin__url": "http://localhost:8080"}, "admin.url is not an option of writes"),
        ({"metadata__url": "etcd:http://localhost:2379"}, "metadata.url is not an option"),
        ({"startingOffsets": "earliest"}, "startingOffsets is not an option"),
        ({"pulsar__producer__producerName": "p"}, "each needs its own name"),
        ({"pulsar__producer__nonsense": "p"}, "pulsar.producer.nonsense is not an option"),
        ({"pulsar__producer__compressionType": "gzip"}, "write NONE or LZ4"),
        ({"pulsar__producer__batchingMaxMessages": "0"}, "1 or more"),
        ({"pulsar__producer__blockIfQueueFull": "false"}, "write true"),
        ({"pulsar__producer__messageRoutingMode": "CustomPartition"}, "RoundRobinPartition"),
        ({"pulsar__client__authParams": "token:x"}, "needs pulsar.client.authPluginClassName"),
        ({"token__file": "/t", "pulsar__client__authPluginClassName": "token"}, "not both"),
        ({"pulsar__client__authPluginClassName": "nobody"}, "authPluginClassName"),
        ({"tls__trust__file": "/ca"}, "is plain: write pulsar"),
        ({"schemaType": "protobuf"}, "write avro or json"),
        ({"transactionTimeoutMs": "5000"}, "needs exactlyOnce=true"),
        ({"exactlyOnce": "yes"}, "write true or false"),
        ({"exactlyOnce": "true", "sinkId": "a"}, "both sinkId and batchId"),
        ({"exactlyOnce": "true", "sinkId": "a/b", "batchId": "1"}, "sinkId 'a/b'"),
        ({"exactlyOnce": "true", "stateNamespace": "x"}, "stateNamespace 'x'"),
        ({"pulsar__client__enableTransaction": "true"}, "write exactlyOnce"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(PreconditionFailed) as raised:
        parse(streaming=False, **options)
    assert text in str(raised.value)


def test_a_stream_without_a_topic_names_the_namespace_of_its_journal() -> None:
    with pytest.raises(PreconditionFailed, match="stateNamespace"):
        parse(streaming=True, topic="", exactlyOnce="true")
    with pytest.raises(PreconditionFailed, match="batchId is an option of batch writes"):
        parse(streaming=True, exactlyOnce="true", sinkId="a", batchId="1")
    options = parse(streaming=True, exactlyOnce="true")
    assert options.exactly_once is not None
    assert options.exactly_once.state_namespace == "public/default"


def test_secrets_reach_tasks_and_are_displayed_nowhere() -> None:
    options = parse(
        pulsar__client__authPluginClassName="token", pulsar__client__authParams="token:hush"
    )
    assert "hush" not in repr(options)
    again = pickle.loads(pickle.dumps(options))  # noqa: S301
    assert again == options
    assert again.client.auth_parameters == "token:hush"
    for broken in ("basic", "tls"):
        with pytest.raises(PreconditionFailed) as raised:
            parse(
                pulsar__client__authPluginClassName=broken,
                pulsar__client__authParams='{"name": "hush"}',
            )
        assert "hush" not in str(raised.value)
