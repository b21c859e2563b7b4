"""`MagnetarCluster.spec.tls` and `spec.auth`, by the names of Pulsar's chart where it has them."""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from magnetar_operator.models.base import Cel, Duration, Model, Name

RoleName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A role whose token is in a Secret: its name is part of the Secret's."""
DnsName = Annotated[str, Meta(pattern=r"^(\*\.)?[a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?$")]
IpAddress = Annotated[str, Meta(pattern=r"^[0-9a-fA-F:.]+$", max_length=45)]


class TlsCommon(Model, frozen=True, kw_only=True):
    """The certificates of components."""

    duration: Annotated[Duration, Meta(description="How long a certificate is valid.")] = "2160h"
    renew_before: Annotated[
        Duration, Meta(description="How long before its expiry a certificate is replaced.")
    ] = "360h"
    key_algorithm: Annotated[
        Literal["ECDSA", "RSA"],
        Meta(
            description="The algorithm of private keys. A handshake with RSA of 4096 bits costs "
            "the server a hundred times the CPU of one with ECDSA."
        ),
    ] = "ECDSA"
    key_size: Annotated[
        Literal[256, 384, 2048, 3072, 4096],
        Meta(description="Their size in bits: 256 or 384 of ECDSA, 2048 and more of RSA."),
    ] = 256

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "(self.?keyAlgorithm.orValue('ECDSA') == 'ECDSA') == "
            "(self.?keySize.orValue(256) < 2048)",
            "keySize must be 256 or 384 with ECDSA, and 2048, 3072 or 4096 with RSA",
            ".keySize",
        ),
    )


class TlsAuthority(Model, frozen=True, kw_only=True):
    """The cluster's own certificate authority."""

    duration: Annotated[Duration, Meta(description="How long an authority is valid.")] = "26280h"
    renew_before: Annotated[
        Duration,
        Meta(description="How long before its expiry the next authority is announced."),
    ] = "4380h"
    settle: Annotated[
        Duration,
        Meta(
            description="The time in which every peer learns of a new authority or token key. Only "
            "then does it sign; clients outside of Kubernetes must have fetched the new trust "
            "by then."
        ),
    ] = "15m"


class TlsBroker(Model, frozen=True, kw_only=True):
    """The certificate of brokers."""

    dns_names: Annotated[
        list[DnsName],
        Meta(description="Further names by which clients reach brokers.", max_length=64),
    ] = []
    ip_addresses: Annotated[
        list[IpAddress],
        Meta(description="Addresses by which clients reach brokers.", max_length=64),
    ] = []


class TlsBookie(Model, frozen=True, kw_only=True):
    """TLS of bookies."""

    plain: Annotated[
        bool,
        Meta(
            description="Whether bookies accept clients without TLS, too: for the step of an "
            "upgrade in which some brokers do not use TLS yet."
        ),
    ] = False


class TlsEtcd(Model, frozen=True, kw_only=True):
    """TLS of the etcd that the operator runs."""

    enabled: Annotated[
        bool, Meta(description="Whether etcd requires TLS and a certificate of its clients.")
    ] = True
    plain: Annotated[
        bool,
        Meta(
            description="Whether etcd accepts clients without TLS, too: for the step of an upgrade "
            "in which some processes do not use TLS yet."
        ),
    ] = False
    peers: Annotated[
        bool,
        Meta(
            description="Whether members use TLS among each other. It cannot be changed while the "
            "cluster exists: the members' addresses are recorded in etcd. Set it to false for "
            "a cluster that was created without TLS."
        ),
    ] = True


class Tls(Model, frozen=True, kw_only=True):
    """TLS of all connections."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether brokers serve clients on 6651 and 8443, and components use TLS "
            "among each other."
        ),
    ] = False
    keep_plain: Annotated[
        bool,
        Meta(description="Whether brokers serve 6650 and 8080, too."),
    ] = False
    issuer: Annotated[
        Literal["Operator", "Secrets"],
        Meta(
            description="Operator: it issues certificates from an authority of the cluster's own. "
            "Secrets: NAME-tls-broker, -bookie, -recovery, -etcd and -jobs exist, each with "
            "tls.crt, tls.key and ca.crt, from cert-manager or from you."
        ),
    ] = "Operator"
    common: Annotated[TlsCommon, Meta(description="The certificates of components.")] = TlsCommon()
    authority: Annotated[TlsAuthority, Meta(description="The cluster's own authority.")] = (
        TlsAuthority()
    )
    broker: Annotated[TlsBroker, Meta(description="The certificate of brokers.")] = TlsBroker()
    bookie: Annotated[TlsBookie, Meta(description="TLS of bookies.")] = TlsBookie()
    etcd: Annotated[TlsEtcd, Meta(description="TLS of etcd.")] = TlsEtcd()


class Jwt(Model, frozen=True, kw_only=True):
    """Tokens (JWT)."""

    using_secret_key: Annotated[
        bool,
        Meta(
            description="Whether tokens are signed by a symmetric key (HS256), which every broker "
            "has, too. false: by a key pair (RS256)."
        ),
    ] = False
    generate_secrets: Annotated[
        bool,
        Meta(
            description="Whether the operator issues the key and the tokens. false: the Secrets of "
            "Pulsar's names exist."
        ),
    ] = True
    duration: Annotated[Duration, Meta(description="How long an issued token is valid.")] = "2160h"
    renew_before: Annotated[
        Duration, Meta(description="How long before its expiry a token is replaced.")
    ] = "360h"
    roles: Annotated[
        list[RoleName],
        Meta(
            description="Further roles whose tokens are issued, into Secrets NAME-token-ROLE.",
            max_length=256,
            examples=[["shop"]],
        ),
    ] = []


class Authentication(Model, frozen=True, kw_only=True):
    """Authentication of clients."""

    enabled: Annotated[
        bool, Meta(description="Whether clients must prove their role by a token.")
    ] = False
    jwt: Annotated[Jwt, Meta(description="Tokens (JWT).")] = Jwt()
    openid: Annotated[
        dict[str, str],
        Meta(
            description="Settings of an OpenID Connect provider beside tokens, by Pulsar's keys "
            "(openIDAllowedTokenIssuers, openIDAllowedAudiences and others).",
            max_length=32,
        ),
    ] = {}


class Authorization(Model, frozen=True, kw_only=True):
    """Rights of roles."""

    enabled: Annotated[bool, Meta(description="Whether brokers check the rights of roles.")] = False


class SuperUsers(Model, frozen=True, kw_only=True):
    """The roles that may do everything, one for each user of the admin REST."""

    broker: Annotated[RoleName, Meta(description="Of brokers among each other.")] = "broker-admin"
    operator: Annotated[RoleName, Meta(description="Of the operator.")] = "operator-admin"
    client: Annotated[RoleName, Meta(description="Of people and their tools.")] = "admin"
    manager: Annotated[
        RoleName | None,
        Meta(description="Of a manager of your own, without a token. Default: none."),
    ] = None


class Auth(Model, frozen=True, kw_only=True):
    """Authentication and authorization."""

    authentication: Annotated[Authentication, Meta(description="Authentication of clients.")] = (
        Authentication()
    )
    authorization: Annotated[Authorization, Meta(description="Rights of roles.")] = Authorization()
    super_users: Annotated[SuperUsers, Meta(description="The roles that may do everything.")] = (
        SuperUsers()
    )
    resource_namespaces: Annotated[
        list[Name],
        Meta(
            description="Further Kubernetes namespaces whose Tenants, Namespaces, Topics, "
            "Subscriptions and Permissions the operator carries out in this cluster, with its "
            "own rights. Those of the cluster's own namespace always are.",
            max_length=64,
        ),
    ] = []

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!self.?authorization.?enabled.orValue(false) || "
            "self.?authentication.?enabled.orValue(false)",
            "authorization needs authentication: set authentication.enabled",
            ".authorization",
        ),
    )
