"""Secrets of a cluster: what is issued, when it is replaced, and that trust always comes first."""

import base64
import datetime
from typing import Any

import jwt
import pytest
from cryptography import x509 as crypto
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from magnetar_operator.kube.kinds import Object
from magnetar_operator.security import wanted as names
from magnetar_operator.security import x509
from magnetar_operator.security.issue import manifest, trust_of
from magnetar_operator.security.plan import Issuance, plan
from magnetar_operator.security.rotation import Pace, Signer, Step, decide
from magnetar_operator.security.stored import data_of, pair_of
from magnetar_operator.security.token_keys import keys_of
from magnetar_operator.security.wanted import Certificates, Leaf, Lifetime, Tokens, Wanted

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
SETTLE = datetime.timedelta(minutes=15)
BROKER = x509.Names("demo-broker", ("demo-broker", "*.ns.pod"), ("10.0.0.1",), is_server=True)
JOBS = x509.Names("demo-jobs", is_client=True)
LEAVES = (Leaf("demo-tls-broker", BROKER), Leaf("demo-tls-jobs", JOBS))


def wanted(*, symmetric: bool = False, leaves: tuple[Leaf, ...] = LEAVES) -> Wanted:
    lifetime = Lifetime(90 * DAY, 15 * DAY)
    certificates = Certificates(
        "demo-ca-tls", Lifetime(1095 * DAY, 182 * DAY), leaves, lifetime, x509.KeyKind(), SETTLE
    )
    roles = {"admin": "demo-token-admin", "shop": "demo-token-shop"}
    tokens = Tokens("demo-token-key", symmetric, roles, lifetime, SETTLE)
    return Wanted("demo", "ns", certificates, tokens, {"cluster": "demo"})


class Stage:
    """Plans and carries out, with a clock that the test sets."""

    def __init__(self, what: Wanted) -> None:
        self.wanted = what
        self.now = START
        self.secrets: dict[str, Object | None] = dict.fromkeys(what.secrets)
        self.versions = 0

    def plan(self, *, deployed: bool = True) -> Issuance:
        return plan(self.wanted, self.secrets, self.now, deployed=deployed)

    def settle(self, *, deployed: bool = True) -> Issuance:
        """Carries out until nothing is left to do."""
        for _ in range(10):
            issuance = self.plan(deployed=deployed)
            if not issuance.actions:
                return issuance
            self.carry_out(issuance)
        raise AssertionError(f"never settles: {issuance.actions}")

    def carry_out(self, issuance: Issuance) -> None:
        before = dict(self.secrets)
        for action in issuance.actions:
            built = manifest(action, self.wanted, before, self.now)
            assert built["metadata"].get("resourceVersion") == (
                None if action.before is None else action.before["metadata"]["resourceVersion"]
            )
            self.versions += 1
            built["metadata"]["resourceVersion"] = str(self.versions)
            self.secrets[action.secret] = built

    def annotate(self, secret: str, name: str, value: str) -> None:
        stored = self.secrets[secret]
        assert stored is not None
        stored["metadata"]["annotations"] = {**stored["metadata"]["annotations"], name: value}

    def field(self, secret: str, key: str) -> bytes:
        return data_of(self.secrets[secret], key)

    def trusted(self) -> list[bytes]:
        """The authorities in the bundle, each PEM."""
        bundle = self.field("demo-ca-tls", names.TRUST)
        end = b"-----END CERTIFICATE-----\n"
        return [part + end for part in bundle.split(end) if part]

    def every_leaf_is_trusted_by_all(self) -> None:
        """Each certificate verifies by the trust that each other component has right now."""
        for leaf in LEAVES:
            certificate = self.field(leaf.secret, names.CERTIFICATE)
            for other in LEAVES:
                bundle = self.field(other.secret, names.TRUST)
                authorities = crypto.load_pem_x509_certificates(bundle)
                pems = [authority.public_bytes(Encoding.PEM) for authority in authorities]
                assert any(x509.is_signed_by(certificate, pem) for pem in pems)


@pytest.fixture
def on() -> Stage:
    stage = Stage(wanted())
    stage.settle()
    return stage


def test_everything_is_issued_once_and_then_rests(on: Stage) -> None:
    issuance = on.plan()
    assert issuance.actions == ()
    assert issuance.problems == ()
    assert all(on.secrets.values())
    bundle = trust_of(on.wanted, on.secrets)
    assert bundle == on.field("demo-tls-broker", names.TRUST) == on.field("demo-tls-jobs", "ca.crt")


def test_the_authority_signs_and_no_component_has_its_key(on: Stage) -> None:
    authority = pair_of(on.secrets["demo-ca-tls"])
    for leaf in LEAVES:
        pair = pair_of(on.secrets[leaf.secret])
        assert x509.is_signed_by(pair.certificate, authority.certificate)
        assert x509.is_for(pair.certificate, leaf.names)
        assert x509.is_pair(pair)
        assert pair.key != authority.key
        stored = on.secrets[leaf.secret]
        assert stored is not None
        assert set(stored["data"]) == {"tls.crt", "tls.key", "ca.crt"}


def test_a_clients_certificate_serves_nothing(on: Stage) -> None:
    certificate = crypto.load_pem_x509_certificate(on.field("demo-tls-jobs", "tls.crt"))
    purposes = certificate.extensions.get_extension_for_class(crypto.ExtendedKeyUsage).value
    assert [purpose._name for purpose in purposes] == ["clientAuth"]
    # etcd compares the names of a client's certificate with its address, if there are any.
    with pytest.raises(crypto.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(crypto.SubjectAlternativeName)


@pytest.mark.parametrize("symmetric", [False, True])
def test_tokens_are_verified_by_the_published_key_set(symmetric: bool) -> None:
    stage = Stage(wanted(symmetric=symmetric))
    stage.settle()
    token = stage.field("demo-token-shop", names.TOKEN).decode()
    key_set = jwt.PyJWKSet.from_json(stage.field("demo-token-key", names.KEY_SET).decode())
    (key,) = key_set.keys
    header = jwt.get_unverified_header(token)
    assert header["kid"] == key.key_id
    options: Any = {"verify_exp": False, "verify_iat": False}
    claims = jwt.decode(token, key, algorithms=[header["alg"]], options=options)
    assert claims["sub"] == "shop"
    assert claims["exp"] - claims["iat"] == (90 * DAY).total_seconds()


def test_the_key_set_of_a_key_pair_has_no_private_part(on: Stage) -> None:
    (member,) = jwt.PyJWKSet.from_json(on.field("demo-token-key", "JWKS").decode()).keys
    assert set(member._jwk_data) == {"kty", "n", "e", "kid", "alg", "use"}


@pytest.mark.parametrize(
    ("after", "replaced"), [(74 * DAY, set()), (75 * DAY, {"demo-tls-broker", "demo-tls-jobs"})]
)
def test_certificates_are_replaced_before_they_expire(
    on: Stage, after: datetime.timedelta, replaced: set[str]
) -> None:
    on.now = START + after
    actions = on.plan().actions
    assert {action.secret for action in actions if action.what == "certificate"} == replaced
    assert {action.secret for action in actions if action.what == "token"} == {
        name.replace("tls-broker", "token-admin").replace("tls-jobs", "token-shop")
        for name in replaced
    }


def test_new_names_replace_one_certificate(on: Stage) -> None:
    more = x509.Names("demo-broker", (*BROKER.dns, "pulsar.example.org"), is_server=True)
    on.wanted = wanted(leaves=(Leaf("demo-tls-broker", more), LEAVES[1]))
    (action,) = on.plan().actions
    assert (action.secret, action.what) == ("demo-tls-broker", "certificate")
    on.settle()
    assert x509.is_for(on.field("demo-tls-broker", "tls.crt"), more)


def test_an_authority_is_replaced_with_overlap(on: Stage) -> None:
    first = on.field("demo-ca-tls", "tls.crt")
    old_leaf = on.field("demo-tls-broker", "tls.crt")
    on.now = START + (1095 - 181) * DAY
    on.settle()  # certificates of long ago are renewed, and the next authority is announced
    assert on.field("demo-ca-tls", "tls.crt") == first
    assert len(on.trusted()) == 2
    assert x509.is_signed_by(on.field("demo-tls-broker", "tls.crt"), first)
    on.every_leaf_is_trusted_by_all()

    on.now += SETTLE - datetime.timedelta(seconds=1)
    assert on.plan().actions == ()
    on.now += datetime.timedelta(seconds=1)
    assert on.plan(deployed=False).actions == (), "etcd does not trust it yet"
    assert on.plan(deployed=False).requeue_s is not None
    on.settle()
    second = on.field("demo-ca-tls", "tls.crt")
    assert second != first
    assert len(on.trusted()) == 2
    new_leaf = on.field("demo-tls-broker", "tls.crt")
    assert x509.is_signed_by(new_leaf, second)
    assert new_leaf != old_leaf
    on.every_leaf_is_trusted_by_all()

    on.now += SETTLE
    on.settle()
    assert on.trusted() == [second]
    on.every_leaf_is_trusted_by_all()
    assert on.plan().rotating == ()


def test_a_rotation_is_requested_by_an_annotation_and_happens_once(on: Stage) -> None:
    first = on.field("demo-ca-tls", "tls.crt")
    on.annotate("demo-ca-tls", names.ROTATE, "true")
    for _ in range(3):
        on.settle()
        on.every_leaf_is_trusted_by_all()
        on.now += SETTLE
    on.settle()
    second = on.field("demo-ca-tls", "tls.crt")
    assert second != first
    on.now += SETTLE
    on.settle()
    assert on.field("demo-ca-tls", "tls.crt") == second


def test_a_token_key_is_replaced_while_its_tokens_are_valid(on: Stage) -> None:
    old = on.field("demo-token-shop", "TOKEN").decode()
    on.annotate("demo-token-key", names.ROTATE, "true")
    on.settle()
    assert on.field("demo-token-shop", "TOKEN").decode() == old
    assert len(jwt.PyJWKSet.from_json(on.field("demo-token-key", "JWKS").decode()).keys) == 2
    on.now += SETTLE
    on.settle()
    new = on.field("demo-token-shop", "TOKEN").decode()
    assert new != old
    published = jwt.PyJWKSet.from_json(on.field("demo-token-key", "JWKS").decode())
    for token in (old, new):
        published[jwt.get_unverified_header(token)["kid"]]
    # A client may hold the old one until it expires.
    on.now += 89 * DAY
    on.settle()
    assert len(jwt.PyJWKSet.from_json(on.field("demo-token-key", "JWKS").decode()).keys) == 2
    on.now += DAY
    on.settle()
    (left,) = jwt.PyJWKSet.from_json(on.field("demo-token-key", "JWKS").decode()).keys
    assert left.key_id != jwt.get_unverified_header(old)["kid"]


@pytest.mark.parametrize("secret", ["demo-ca-tls", "demo-token-key"])
def test_a_signer_that_cannot_be_read_is_never_overwritten(on: Stage, secret: str) -> None:
    stored = on.secrets[secret]
    assert stored is not None
    stored["data"] = dict.fromkeys(stored["data"], base64.b64encode(b"garbage").decode())
    issuance = on.plan()
    (problem,) = issuance.problems
    assert secret in problem
    assert secret not in {action.secret for action in issuance.actions}


def test_a_key_that_was_brought_along_gets_a_key_set_and_stays(on: Stage) -> None:
    stored = on.secrets["demo-token-key"]
    assert stored is not None
    key = on.field("demo-token-key", "PRIVATEKEY")
    stored["data"] = {"PRIVATEKEY": stored["data"]["PRIVATEKEY"]}
    on.settle()
    assert on.field("demo-token-key", "PRIVATEKEY") == key
    assert on.field("demo-token-key", "PUBLICKEY")
    assert jwt.PyJWKSet.from_json(on.field("demo-token-key", "JWKS").decode()).keys


def test_nothing_secret_is_printed(on: Stage) -> None:
    on.annotate("demo-ca-tls", names.ROTATE, "true")
    on.annotate("demo-token-key", names.ROTATE, "true")
    on.annotate("demo-token-shop", names.ROTATE, "true")
    issuance = on.plan()
    keys = keys_of(on.secrets["demo-token-key"], symmetric=False)
    printed = repr((issuance, keys, pair_of(on.secrets["demo-ca-tls"])))
    printed += "".join(str(action.plan_step.manifest()) for action in issuance.actions)
    stored = [secret["data"] for secret in on.secrets.values() if secret is not None]
    secret_fields = ("tls.key", "PRIVATEKEY", "TOKEN")
    values = [data[field] for data in stored for field in secret_fields if field in data]
    assert len(values) == 6
    for value in values:
        decoded = base64.b64decode(value)
        assert value[:40] not in printed
        assert decoded[60:100].decode(errors="replace") not in printed


times = st.none() | st.integers(-3_000, 3_000).map(
    lambda seconds: START + datetime.timedelta(seconds=seconds)
)


@given(
    signer=st.builds(
        Signer,
        exists=st.booleans(),
        due=st.booleans(),
        expired=st.booleans(),
        announced_at=times,
        promoted_at=times,
    ),
    deployed=st.booleans(),
    followed=st.booleans(),
)
def test_no_step_is_taken_before_its_peers_are_ready(
    signer: Signer, deployed: bool, followed: bool
) -> None:
    pace = Pace(SETTLE, datetime.timedelta())
    decision = decide(signer, pace, START, deployed=deployed, followed=followed)
    if decision.step is Step.PROMOTE:
        assert signer.announced_at is not None
        assert signer.expired or (deployed and START - signer.announced_at >= SETTLE)
    if decision.step is Step.RETIRE:
        assert signer.promoted_at is not None
        assert followed
        assert START - signer.promoted_at >= SETTLE
        assert signer.announced_at is None
    if decision.step is Step.ANNOUNCE:
        assert signer.promoted_at is None, "two rotations at once"
    assert (decision.step is Step.CREATE) == (not signer.exists)
