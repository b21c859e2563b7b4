"""Runs the lines of `commands/*.txt` with the official tool, all in one JVM, on one server."""

import asyncio
import json
import shlex
from contextlib import ExitStack
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

import httpx
import pulsar
from tests.interop.java_programs import JavaPrograms, LineProcess
from tests.interop.support import ServerAddress
from tests.support.transactional import TransactionalClient

from magnetar.broker.transactions.assignment import assign_partition
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

from .answers import Answer, output
from .forwarder import Forwarder, forwarding
from .lines import Line, lines

COMMAND_TIMEOUT_S = 60.0
COORDINATOR = 3
# Of our server; the recorded Pulsar has transactions too.
ENVIRONMENT = {"MAGNETAR_TRANSACTIONS": "true"}
TOPICS = {name: f"persistent://at/ns/{name.lower()}" for name in ("T", "P", "S")}
RECORD = '{"type":"record","name":"R","fields":[{"name":"a","type":"%s"}]}'


def catalog(java: JavaPrograms, log: Path) -> dict[str, list[str]]:
    """All commands of the tool with their options, as the tool itself has them."""
    process = LineProcess(java.command(java.tools, "AdminCatalog"), log)
    try:
        return dict(json.loads(process.ask("", COMMAND_TIMEOUT_S)))
    finally:
        process.kill()


def answers(java: JavaPrograms, server: ServerAddress, directory: Path) -> list[Answer]:
    """Runs all lines against the server."""
    with ExitStack() as stack:
        forwarder = stack.enter_context(forwarding(server.http_url))
        conf = directory / "client.conf"
        conf.write_text(f"webServiceUrl={forwarder.url}/\nbrokerServiceUrl={server.service_url}/\n")
        process = LineProcess(
            java.command(java.tools, "AdminRunner", str(conf)), directory / "jvm.log"
        )
        stack.callback(process.kill)
        run = _Run(process, forwarder, server, directory)
        return [answer for line in lines() if (answer := run.line(line))]


class _Run:
    """One run: its names, and what they are replaced by in answers."""

    def __init__(
        self, process: LineProcess, forwarder: Forwarder, server: ServerAddress, directory: Path
    ) -> None:
        self._process, self._forwarder, self._server = process, forwarder, server
        http, binary = server.http_url, server.service_url
        bookie = _bookie(http)
        broker = http.removeprefix("http://")
        self._names = {
            **TOPICS,
            "DIR": str(directory),
            "BROKER": broker,
            "BOOKIE": bookie,
            "L": "0",
        }
        self._replaced = {
            forwarder.url: "$HTTP",
            http: "$HTTP",
            binary: "$SERVICE",
            broker: "$BROKER",
            str(directory): "$DIR",
        }
        for name, kind in (("schema", "int"), ("other", "string")):
            document = {"type": "AVRO", "schema": RECORD % kind, "properties": {}}
            (directory / f"{name}.json").write_text(json.dumps(document))

    def line(self, line: Line) -> Answer | None:
        if line.mode == ">":
            if line.text == "transaction":
                asyncio.run(self._begin())
            else:
                self._produce(int(line.text.split()[1]))
            return None
        arguments = shlex.split(Template(line.text).substitute(self._names))
        self._forwarder.take()
        answer = json.loads(self._process.ask(json.dumps(arguments), COMMAND_TIMEOUT_S))
        statuses = self._forwarder.take(awaited=line.mode == "!") or [0]
        names = dict(self._replaced)
        if line.command.startswith("bookies "):  # a standalone's bookie is named as its cluster
            names[self._names["BOOKIE"]] = "$BOOKIE"
        shown = output(answer["out"], answer["err"], mode=line.mode, names=names)
        return Answer(line.text, statuses[-1], answer["code"], shown)

    def _produce(self, count: int) -> None:
        client = pulsar.Client(
            self._server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        try:
            producer = client.create_producer(TOPICS["T"], batching_enabled=False)
            sent = [
                producer.send(f"m-{n}".encode(), properties={"n": str(n)}) for n in range(count)
            ]
        finally:
            client.close()
        self._name_ledger(sent[0].ledger_id())

    async def _begin(self) -> None:
        url = urlsplit(self._server.service_url)
        async with TransactionalClient((str(url.hostname), int(str(url.port)))) as client:
            await client.coordinators()
            # Pulsar loads a coordinator when a client connects to it.
            coordinator = await client.at(str(assign_partition(COORDINATOR)))
            await coordinator.request(
                CommandType.TC_CLIENT_CONNECT_REQUEST,
                pb.CommandTcClientConnectRequest(tc_id=COORDINATOR),
            )
            await client.receive(TOPICS["T"], 0)
            await client.send(TOPICS["T"], None, b"acked")
            txn = await client.begin(coordinator=COORDINATOR)
            await client.add(txn, TOPICS["T"])
            await client.add_subscription(txn, TOPICS["T"], "s")
            connection, consumer, received = await client.receive(TOPICS["T"], 1)
            await client.ack(connection, consumer, txn, received)
            await client.send(TOPICS["T"], txn, b"open")
        self._names |= {"MOST": str(txn[0]), "LEAST": str(txn[1])}
        self._replaced[f"({txn[0]},{txn[1]})"] = "$TXN"
        self._name_ledger(received[0].ledger_id)

    def _name_ledger(self, number: int) -> None:
        """A later ledger's number may be part of the earlier one's text, so there is one."""
        self._replaced = {text: name for text, name in self._replaced.items() if "$L" not in name}
        ledger = self._names["L"] = str(number)
        self._replaced |= {f"{ledger}:": "$L:", f'"ledgerId" : {ledger}': '"ledgerId" : "$L"'}


def _bookie(http_url: str) -> str:
    found = (
        httpx.get(f"{http_url}/admin/v2/bookies/all", timeout=COMMAND_TIMEOUT_S, trust_env=False)
        .raise_for_status()
        .json()
    )
    return str(found["bookies"][0]["bookieId"])
