"""Texts that a client chooses: they fill no log, and break no answer for others."""

import base64
import logging

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.rest import closed_rest
from tests.security.sessions import closed_broker, connecting
from tests.support.tokens import SECRET, token
from tests.unit.admin.support import entry

from magnetar.admin.message_view import message_response
from magnetar.core.clock import SystemClock
from magnetar.core.ids import LATEST
from magnetar.managed_ledger.entry import Entry
from magnetar.security.api import ProviderUnavailable
from magnetar.security.authenticator import ProviderChain, open_authenticator
from magnetar.security.configuration import Authentication, TokenProviderConfig
from magnetar.security.fetch import ProviderClient, tls_context
from magnetar.security.openid.issuers import WebIssuer
from magnetar.security.secret import Secret

TRIES = 10
TEXTS = st.text(alphabet=st.sampled_from(" \t\r\n\0\x7fax:ü"), max_size=6)


def by_token() -> ProviderChain:
    secret = Secret("data:;base64," + base64.b64encode(SECRET).decode())
    config = Authentication(providers=(TokenProviderConfig(secret_key=secret),))
    return open_authenticator(config, SystemClock())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if "authentication failed" in record.getMessage()
    ]


async def test_the_kid_and_the_method_of_a_client_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both are in the line, so each text would be a cause of its own."""
    caplog.set_level(logging.INFO)
    async with closed_broker(authenticator=by_token(), authorization=False) as w:
        for number in range(TRIES):
            unknown = token({"sub": "x"}, "RS256", kid=f"kid-{number}").decode()
            assert (await connecting(w, unknown, "token")).kinds() == ["ERROR"]
            assert (await connecting(w, "x", f"method-{number}")).kinds() == ["ERROR"]
    shown = lines(caplog)
    assert len(shown) == 2


async def test_nor_do_those_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with closed_rest() as closed:
        for number in range(TRIES):
            unknown = token({"sub": "x"}, "RS256", kid=f"kid-{number}").decode()
            assert (await closed.send("GET", "~/tenants", unknown)).status_code == 401
            headers = {"x-pulsar-auth-method-name": f"method-{number}"}
            assert (await closed.send("GET", "~/tenants", "x", headers=headers)).status_code == 401
    assert len(lines(caplog)) == 2


class LogWithoutTransactions:
    """The log of a message."""

    last_visible = LATEST

    def is_aborted(self, ledger_id: int, entry_id: int) -> bool:
        return False


@given(producer=TEXTS, key=TEXTS, prop=TEXTS)
def test_a_message_can_be_peeked_whatever_its_producer_chose(
    producer: str, key: str, prop: str
) -> None:
    """Its texts become headers, which HTTP restricts: a header that is not valid is a 500."""
    data = entry(b"x", producer_name=producer, partition_key=key, uuid=prop)
    response = message_response(Entry(1, 0, data), ledger=LogWithoutTransactions())
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n")
    server.next_event()
    server.next_event()
    server.send(h11.Response(status_code=200, headers=response.raw_headers))
    shown = dict(response.raw_headers)
    assert shown[b"X-Pulsar-partition-key"] == shown[b"X-Pulsar-partition-key"].strip()


async def test_an_issuer_that_kubernetes_names_must_be_https() -> None:
    client = ProviderClient(tls_context(""), connect_timeout_s=1, read_timeout_s=1)
    issuer = WebIssuer("http://127.0.0.1:1/issuer", client, require_https=True)
    with pytest.raises(ProviderUnavailable, match="is not https"):
        await issuer.fetch()
    await client.close()
