"""The stand-in for `import pulsar`: records, options, errors, and what it refuses."""

import gc
import logging
import os
import pickle
import signal
import threading
import warnings
from enum import Enum
from pathlib import Path
from typing import Any

import _pulsar
import pulsar as official
import pulsar.schema as official_schema
import pytest

import magnetar.pulsar as stand_in
from magnetar.client import MessageId as OwnMessageId
from magnetar.client import errors
from magnetar.client.options import Batching, RoundRobin, SinglePartition
from magnetar.pulsar import asyncio as stand_in_asyncio
from magnetar.pulsar import schema
from magnetar.pulsar.callbacks import CallbackThread
from magnetar.pulsar.logs import NAME
from magnetar.pulsar.options import client_options, producer_options
from magnetar.pulsar.outcomes import exception_of

DEADLINE_S = 20.0
ENUMS = (
    "BatchingType", "CompressionType", "ConsumerCryptoFailureAction", "ConsumerType",
    "InitialPosition", "KeySharedMode", "LoggerLevel", "PartitionsRoutingMode",
    "ProducerAccessMode", "RegexSubscriptionMode", "Result", "SchemaType",
)  # fmt: skip


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_are_those_of_the_official_client(name: str) -> None:
    ours, theirs = getattr(stand_in._pulsar, name), getattr(_pulsar, name)
    assert {key: int(member) for key, member in ours.__members__.items()} == {
        key: int(member) for key, member in theirs.__members__.items()
    }
    for key, member in ours.__members__.items():
        assert f"{member} {member!s}" == f"{theirs.__members__[key]} {theirs.__members__[key]!s}"


def test_exceptions_are_those_of_the_official_client() -> None:
    names = {kind.__name__ for kind in _pulsar.PulsarException.__subclasses__()}
    assert names <= set(stand_in.__all__)
    for name in names:
        kind = getattr(stand_in, name)
        assert (kind.__base__, kind.result.name) == (stand_in.PulsarException, name)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.OperationTimeout("x"), stand_in.Timeout),
        (errors.AlreadyClosed("x"), stand_in.AlreadyClosed),
        (errors.server_error(7, "x"), stand_in.ProducerBlockedQuotaExceededError),
        (errors.server_error(8, "x"), stand_in.ProducerBlockedQuotaExceededException),
        (errors.server_error(18, "x"), stand_in.IncompatibleSchema),
        (errors.MessageTooBig("x"), stand_in.MessageTooBig),
        (errors.SendFailed("x"), stand_in.UnknownError),
        (errors.ProducerFenced("x"), stand_in.ProducerFenced),
    ],
)
def test_errors_become_exceptions(
    error: errors.ClientError, kind: type[stand_in.PulsarException]
) -> None:
    raised = exception_of(error)
    assert type(raised) is kind
    name = {"Timeout": "TimeOut", "ProducerFenced": "ResultProducerFenced"}.get(kind.__name__)
    assert str(raised).startswith(f"Pulsar error: {name or kind.__name__}: ")


@pytest.mark.parametrize("name", sorted(set(dir(official)) - {"annotations"}))
def test_each_name_is_there_or_refused_by_name(name: str) -> None:
    value = getattr(official, name)
    belongs = getattr(value, "__module__", "").startswith(("pulsar", "_pulsar"))
    if name.startswith("_") or not belongs:
        return
    if name in stand_in.__all__:
        assert getattr(stand_in, name) is not None
    else:
        with pytest.raises(ImportError, match=f"magnetar.pulsar has no {name}: "):
            getattr(stand_in, name)


@pytest.mark.parametrize("name", sorted(name for name in dir(_pulsar) if name[0] != "_"))
def test_each_name_of_the_library_is_there_or_refused_by_name(name: str) -> None:
    if name in stand_in._pulsar.__all__:
        ours = getattr(stand_in._pulsar, name)
        assert ours is getattr(stand_in, name, ours)
        assert issubclass(ours, Exception) == issubclass(getattr(_pulsar, name), Exception)
    else:
        assert name not in ENUMS
        with pytest.raises(ImportError, match=f"_pulsar has no {name}: "):
            getattr(stand_in._pulsar, name)


def records(module: Any) -> Any:
    """The same records in both packages."""

    class Color(Enum):
        RED = 1
        BLUE = 2

    class Inner(module.Record):  # type: ignore[misc]
        flag = module.Boolean()
        amount = module.Double(default=1.5, required_default=True)

    class Outer(module.Record):  # type: ignore[misc]
        _avro_namespace = "ns"
        name = module.String(required=True)
        data = module.Bytes()
        number = module.Integer(default=3)
        big = module.Long()
        color = Color
        shade = module.CustomEnum(Color, default=Color.BLUE, required_default=True)
        tags = module.Array(module.String(), default=["x"], required_default=True)
        counts = module.Map(module.Long())
        inner = Inner()
        others = module.Array(Inner())
        more = module.Map(Inner())

    values = {
        "name": b"n",
        "data": "d",
        "big": 2**40,
        "color": "RED",
        "counts": {"a": 1},
        "inner": {"flag": True},
        "others": [{"amount": 2.0}],
        "more": {"k": {"flag": False}},
    }
    return Outer, Outer(**values)


@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_records_have_the_definitions_and_bytes_of_the_official_client(kind: str) -> None:
    (ours, our_value), (theirs, their_value) = records(schema), records(official_schema)
    assert ours.schema() == theirs.schema()
    our_schema, their_schema = getattr(schema, kind)(ours), getattr(official_schema, kind)(theirs)
    declared = their_schema.schema_info()
    assert our_schema.schema_info().schema() == declared.schema()
    assert our_schema.schema_info().name() == declared.name()
    encoded = our_schema.encode(our_value)
    assert encoded == their_schema.encode(their_value)
    assert str(our_schema.decode(encoded).name) == str(their_schema.decode(encoded).name) == "n"
    assert our_schema.decode(encoded) == our_value or kind == "JsonSchema"
    assert our_schema.schema_info().schema_type().name == declared.schema_type().name
    assert list(vars(our_value)) == list(vars(their_value))


def test_a_value_that_does_not_fit_its_schema_raises_what_fastavro_does() -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]}
    for module in (schema, official_schema):
        avro: Any = module.AvroSchema(None, definition)
        with pytest.raises(ValueError, match="no value"):
            avro.encode({})
        with pytest.raises(TypeError, match="must be string"):
            avro.encode({"n": 5})


def test_a_schema_of_the_program_declares_its_type() -> None:
    class Raw(schema.Schema):
        def __init__(self, kind: Any) -> None:
            super().__init__(bytes, kind, None, "RAW")

        def encode(self, obj: Any) -> bytes:
            return bytes(obj)

        def decode(self, data: bytes) -> Any:
            return data

    assert Raw(stand_in._pulsar.SchemaType.JSON).schema_info().schema_type() == 2
    with pytest.raises(ValueError, match="AUTO_PUBLISH"):
        Raw(stand_in._pulsar.SchemaType.AUTO_PUBLISH)
    with pytest.raises(ValueError, match="schema_type"):
        Raw("JSON")


@pytest.mark.parametrize(
    "values", [{"name": 1}, {"color": "GREEN"}, {"tags": [1]}, {"counts": {1: 2}}, {"inner": 3}]
)
def test_records_refuse_what_the_official_client_refuses(values: dict[str, object]) -> None:
    for module in (schema, official_schema):
        with pytest.raises(TypeError):
            records(module)[0](**values)
    with pytest.raises(AttributeError, match="undeclared field colour"):
        records(schema)[1].colour = 1


def arguments(**changed: object) -> dict[str, Any]:
    """The arguments of `create_producer` by name."""
    defaults = dict(
        zip(
            stand_in.Client.create_producer.__code__.co_varnames[2:],
            stand_in.Client.create_producer.__defaults__ or (),
            strict=False,
        )
    )
    return {**defaults, "topic": "t", **changed}


def test_options_of_producers() -> None:
    options = producer_options(
        arguments(batching_enabled=True, max_pending_messages=10, send_timeout_millis=500)
    )
    assert options["batching"] == Batching(messages_max=10)
    assert options["send_timeout_s"] == 0.5
    assert options["routing"] == RoundRobin()
    single = arguments(message_routing_mode=stand_in.PartitionsRoutingMode.UseSinglePartition)
    assert producer_options(single)["routing"] == SinglePartition()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"producer_name": 1}, "producer_name must be None or of type str"),
        ({"batching_enabled": True, "chunking_enabled": True}, "can't be enabled together"),
        ({"encryption_key": "k"}, "go together"),
        (
            {"message_routing_mode": stand_in.PartitionsRoutingMode.CustomPartition},
            "needs message_router",
        ),
    ],
)
def test_bad_options_of_producers(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        producer_options(arguments(**changed))


def test_options_of_clients_are_refused_or_reported() -> None:
    url = "pulsar://127.0.0.1:1"
    for options, reason in (
        ({"log_conf_file_path": "f"}, "log4cxx"),
        ({"use_tls": True}, r"pulsar\+ssl"),
        ({"logger": 1}, "logger must be"),
        ({"io_threads": "2"}, "io_threads must be of type int"),
        ({"message_listener_threads": 0}, "message_listener_threads must be at least 1"),
        ({"tls_certificate_file_path": "f"}, "go together"),
        ({"operation_timeout_seconds": 0}, "operation_timeout_s"),
    ):
        with pytest.raises(ValueError, match=reason):
            stand_in.Client(url, **options)
    with pytest.raises(ValueError, match="scheme part is missing"):
        stand_in.Client("nonsense")
    with pytest.raises(stand_in.OperationNotSupported, match="AutoClusterFailover"):
        stand_in.Client(stand_in.ServiceInfoProvider())
    with pytest.warns(stand_in.OptionHasNoEffect, match="io_threads has no effect") as warned:
        stand_in.Client(url, io_threads=4).close()
    assert warned[0].filename == __file__
    with pytest.warns(stand_in.OptionHasNoEffect, match="message_listener_threads") as warned:
        stand_in_asyncio.Client(url, message_listener_threads=2).shutdown()
    assert warned[0].filename == __file__
    with pytest.raises(stand_in.OperationNotSupported, match="no Athenz"):
        stand_in.AuthenticationAthenz("{}")
    with pytest.raises(stand_in.OperationNotSupported, match=r"does not load the plugin auth\.so"):
        stand_in.Authentication("auth.so", "x")


def test_failover_takes_numbers_of_checks() -> None:
    infos = [stand_in.ServiceInfo(f"pulsar://{host}:6650") for host in "abc"]
    failover = stand_in.AutoClusterFailover(infos[0], infos[1:], 1000, 3, 5)
    defaults = dict.fromkeys(
        ("authentication", "log_conf_file_path", "tls_trust_certs_file_path", "listener_name",
         "tls_private_key_file_path", "tls_certificate_file_path")
    )  # fmt: skip
    values = {
        **defaults, "operation_timeout_seconds": 30, "io_threads": 1,
        "message_listener_threads": 1, "concurrent_lookup_requests": 50_000,
        "stats_interval_in_seconds": 600, "use_tls": False, "connection_timeout_ms": 10_000,
        "tls_allow_insecure_connection": False, "tls_validate_hostname": False,
    }  # fmt: skip
    url, options = client_options(failover, values)
    assert url == "pulsar://a:6650"
    secondaries = options["failover"].secondaries
    assert [item.url for item in secondaries] == ["pulsar://b:6650", "pulsar://c:6650"]
    assert (options["failover"].failover_delay_s, options["failover"].switch_back_delay_s) == (2, 4)


def test_each_cluster_of_a_failover_has_its_own_credentials() -> None:
    token = stand_in.AuthenticationToken("t")
    primary = stand_in.ServiceInfo("pulsar+ssl://a:6651", token, "/a.pem")
    secondary = stand_in.ServiceInfo("pulsar+ssl://b:6651", None, "/b.pem")
    failover = stand_in.AutoClusterFailover(primary, [secondary])
    client = stand_in.Client(failover, tls_validate_hostname=True)
    options = client._client._inner.options
    assert (options.auth, options.tls.trust_certificates_file) == (token.auth, "/a.pem")
    (cluster,) = options.failover.secondaries
    assert (cluster.auth.method, cluster.tls.trust_certificates_file) == ("none", "/b.pem")
    assert options.tls.verify_hostname
    assert cluster.tls.verify_hostname
    client.close()


def test_refused_policies() -> None:
    with pytest.raises(ValueError, match="range"):
        stand_in.ConsumerKeySharedPolicy(stand_in.KeySharedMode.Sticky, sticky_ranges=[(5, 1)])
    with pytest.raises(ValueError, match="needs sticky_ranges"):
        stand_in.ConsumerKeySharedPolicy(stand_in.KeySharedMode.Sticky, sticky_ranges=[])


@pytest.mark.parametrize(
    ("policy", "arguments", "name"),
    [
        (stand_in.ConsumerKeySharedPolicy, {"key_shared_mode": 5}, "key_shared_mode"),
        (stand_in.ConsumerKeySharedPolicy, {"sticky_ranges": 5}, "sticky_ranges"),
        (
            stand_in.ConsumerDeadLetterPolicy,
            {"max_redeliver_count": 1, "dead_letter_topic": 5},
            "dead_letter_topic",
        ),
        (
            stand_in.ConsumerBatchReceivePolicy,
            {"max_num_message": 1, "max_num_bytes": "1", "timeout_ms": 1},
            "max_num_bytes",
        ),
    ],
)
def test_policies_check_their_types(policy: Any, arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        policy(**arguments)


def test_lines_of_the_log_go_to_the_clients_logger(tmp_path: Path) -> None:
    path = tmp_path / "client.log"
    lines: list[str] = []
    target = logging.Logger("program", logging.INFO)  # of this test alone
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    target.addHandler(handler)
    loggers = (target, stand_in.FileLogger(stand_in.LoggerLevel.Info, str(path)))
    clients = [stand_in.Client("pulsar://127.0.0.1:1", logger=logger) for logger in loggers]
    logging.getLogger(f"{NAME}.client.test").info("a line")
    for client in clients:
        client.close()
    logging.getLogger(f"{NAME}.client.test").warning("after the end")
    assert lines == ["a line"]
    assert path.read_text().endswith("a line\n")
    assert logging.getLogger(NAME).level == logging.NOTSET
    with pytest.raises(stand_in.AlreadyClosed):
        clients[0].close()


def test_a_client_that_is_collected_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    client = stand_in.Client("pulsar://127.0.0.1:1")
    heard = threading.Event()
    client._callbacks.post(heard.set)
    assert heard.wait(DEADLINE_S)
    assert client._callbacks._thread is not None
    thread = client._callbacks._thread
    del client
    gc.collect()
    thread.join(DEADLINE_S)
    assert not set(threading.enumerate()) - before


def test_an_exit_in_a_callback_leaves_the_others() -> None:
    thread = CallbackThread("test")
    heard = threading.Event()

    def exits() -> None:
        raise SystemExit(3)

    thread.post(exits)
    thread.post(heard.set)
    assert heard.wait(DEADLINE_S)
    thread.close()


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent() -> None:
    thread = CallbackThread("test")
    started, ended = threading.Event(), threading.Event()

    def holds_the_lock() -> None:
        with thread._lock:
            started.set()
            ended.wait(DEADLINE_S)

    holder = threading.Thread(target=holds_the_lock)
    holder.start()
    assert started.wait(DEADLINE_S)
    child = os.fork()
    if child == 0:
        signal.alarm(int(DEADLINE_S / 2))  # a child that waits is killed
        ran: list[int] = []
        thread.post(lambda: ran.append(1))
        thread.close()
        os._exit(0 if ran else 1)
    _, status = os.waitpid(child, 0)
    ended.set()
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0
    thread.close()


def test_callbacks_of_two_threads_may_close_the_client() -> None:
    client = stand_in.Client("pulsar://127.0.0.1:1", message_listener_threads=2)
    both = threading.Barrier(2)
    threads = [client._callbacks, client._listeners[0]]

    def close() -> None:
        both.wait(DEADLINE_S)
        client.shutdown()

    for thread in threads:
        thread.post(close)
    for thread in threads:
        assert thread._thread is not None
        thread._thread.join(DEADLINE_S / 4)
        assert not thread._thread.is_alive()


def test_a_collected_asyncio_client_releases_its_log(tmp_path: Path) -> None:
    logger = stand_in.FileLogger(stand_in.LoggerLevel.Info, str(tmp_path / "client.log"))
    client = stand_in_asyncio.Client("pulsar://127.0.0.1:1", logger=logger)
    handler = client._log_handler
    assert handler in logging.getLogger(NAME).handlers
    del client
    gc.collect()
    assert handler not in logging.getLogger(NAME).handlers


def test_use_tls_holds_for_all_clusters_of_a_failover() -> None:
    plain, tls = (stand_in.ServiceInfo(f"{scheme}://h:6650") for scheme in ("pulsar", "pulsar+ssl"))
    for primary, secondary in ((plain, tls), (tls, plain)):
        failover = stand_in.AutoClusterFailover(primary, [secondary])
        with pytest.raises(ValueError, match=r"use_tls needs .*pulsar\+ssl"):
            stand_in.Client(failover, use_tls=True)


def test_message_ids_compare_and_print_as_the_official_ones() -> None:
    ours, theirs = stand_in.MessageId(1, 2, 3, 4), official.MessageId(1, 2, 3, 4)
    assert (str(ours), ours.serialize()) == (str(theirs), theirs.serialize())
    assert stand_in.MessageId.earliest < ours < stand_in.MessageId.latest
    again = stand_in.MessageId.deserialize(theirs.serialize())
    assert again == ours
    for damaged in (b"\xff", b"", b"\x08\x05", "text"):
        with pytest.raises(ValueError, match="not a serialized message id"):
            stand_in.MessageId.deserialize(damaged)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="serialized message id"):
            official.MessageId.deserialize(damaged)
    with pytest.raises(TypeError, match="entry_id"):
        stand_in.MessageId(1, 2, "3", 4)  # type: ignore[arg-type]
    ours.note = "of the program"  # type: ignore[attr-defined]
    received = OwnMessageId(2, 3, 1, 4, 9, "t", OwnMessageId(2, 1), memoryview(b"an entry"))
    copied = pickle.loads(pickle.dumps(stand_in.MessageId.wrap(received)))  # noqa: S301
    assert (copied, copied._msg_id.topic, copied._msg_id.batch_size) == (ours, "t", 9)
    assert (copied._msg_id.first_chunk, copied._msg_id.entry) == (OwnMessageId(2, 1), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(stand_in.MessageId.earliest) == str(official.MessageId.earliest)
