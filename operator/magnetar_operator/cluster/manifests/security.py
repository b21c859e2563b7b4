"""Builds what a cluster with TLS and authentication adds to pods: settings, files, Secrets.

All secrets are files, which processes read again when they change: a new certificate, key or token
restarts nothing. Only etcd reads its trusted authorities at its start alone, so a digest of them is
an annotation of its pods (`TRUST_DIGEST`).
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from magnetar_operator.cluster.manifests.names import (
    BOOKIE,
    BROKER,
    ETCD,
    HTTPS_PORT,
    JOBS,
    PULSAR_TLS_PORT,
    RECOVERY,
    Cluster,
    digest,
)
from magnetar_operator.kube.kinds import CONFIG_MAP, Object
from magnetar_operator.models.values import seconds
from magnetar_operator.security.wanted import (
    KEY_SET,
    PUBLIC_KEY,
    SECRET_KEY,
    TOKEN,
    TRUST,
    Certificates,
    Leaf,
    Lifetime,
    Tokens,
    Wanted,
)
from magnetar_operator.security.x509 import KeyKind, Names

TLS_DIR: Final = "/etc/magnetar/tls"
CLIENT_DIR: Final = "/etc/magnetar/tls-client"
TOKEN_KEY_DIR: Final = "/etc/magnetar/token-key"  # noqa: S105  a path
TOKEN_DIR: Final = "/etc/magnetar/token"  # noqa: S105  a path
TRUST_DIGEST: Final = "magnetar.io/trust"
FILE_MODE: Final = 0o440
"""The mode of mounted secrets: the pod's group reads them."""

CERTIFICATE_FILE: Final = f"{TLS_DIR}/tls.crt"
KEY_FILE: Final = f"{TLS_DIR}/tls.key"
TRUST_FILE: Final = f"{TLS_DIR}/ca.crt"
CLIENT_CERTIFICATE_FILE: Final = f"{CLIENT_DIR}/tls.crt"
CLIENT_KEY_FILE: Final = f"{CLIENT_DIR}/tls.key"
CLIENT_TRUST_FILE: Final = f"{CLIENT_DIR}/ca.crt"

METRICS_ROLE: Final = "metrics"
"""The role of Prometheus. It has no rights: metrics of brokers need a role, whichever it is."""
JOBS_ROLE: Final = "jobs"
"""The role of Spark jobs: an observer."""

PROVIDERS: Final = "org.apache.pulsar.broker.authentication"
TOKEN_PROVIDER: Final = f"{PROVIDERS}.AuthenticationProviderToken"
OPENID_PROVIDER: Final = f"{PROVIDERS}.oidc.AuthenticationProviderOpenID"
TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # noqa: S105


def wanted_of(cluster: Cluster) -> Wanted | None:
    """The Secrets that the operator issues for a cluster; None: none."""
    certificates = _certificates(cluster) if _issues_certificates(cluster) else None
    tokens = _tokens(cluster) if _issues_tokens(cluster) else None
    if certificates is None and tokens is None:
        return None
    return Wanted(
        cluster.name,
        cluster.namespace,
        certificates,
        tokens,
        labels={**cluster.labels, "app.kubernetes.io/managed-by": "magnetar-operator"},
        owner=cluster.owner_reference if cluster.uid else None,
    )


def _issues_certificates(cluster: Cluster) -> bool:
    return cluster.has_tls and cluster.spec.tls.issuer == "Operator"


def _issues_tokens(cluster: Cluster) -> bool:
    # Roles that are listed have tokens before brokers ask for them, so that clients can prepare.
    authentication = cluster.spec.auth.authentication
    return authentication.jwt.generate_secrets and (
        authentication.enabled or bool(authentication.jwt.roles)
    )


def _certificates(cluster: Cluster) -> Certificates:
    tls = cluster.spec.tls
    return Certificates(
        authority=cluster.object_name("ca-tls"),
        authority_lifetime=_lifetime(tls.authority.duration, tls.authority.renew_before),
        leaves=tuple(
            Leaf(tls_secret(cluster, component), names_of(cluster, component))
            for component in tls_components(cluster)
        ),
        lifetime=_lifetime(tls.common.duration, tls.common.renew_before),
        key_kind=KeyKind(tls.common.key_algorithm, tls.common.key_size),
        settle=timedelta(seconds=seconds(tls.authority.settle)),
    )


def _tokens(cluster: Cluster) -> Tokens:
    jwt = cluster.spec.auth.authentication.jwt
    return Tokens(
        key=token_key_secret(cluster),
        symmetric=jwt.using_secret_key,
        roles={role: token_secret(cluster, role) for role in token_roles(cluster)},
        lifetime=_lifetime(jwt.duration, jwt.renew_before),
        settle=timedelta(seconds=seconds(cluster.spec.tls.authority.settle)),
    )


def _lifetime(duration: int | str, renew_before: int | str) -> Lifetime:
    return Lifetime(timedelta(seconds=seconds(duration)), timedelta(seconds=seconds(renew_before)))


def tls_components(cluster: Cluster) -> tuple[str, ...]:
    """The certificates of a cluster.

    A process that serves and connects has one for each. etcd requires this: it compares the names
    of a client's certificate, if it has any, with the client's address, and a broker's names are
    not those of its pod.
    """
    recovery = (RECOVERY,) if cluster.separate_recovery else ()
    etcd = (ETCD,) if cluster.etcd_has_tls else ()
    both = (BROKER, BOOKIE, *recovery)
    return (*both, *(client_of(component) for component in both), *etcd, JOBS)


def client_of(component: str) -> str:
    """The name of a component's certificate as a client."""
    return f"{component}-client"


def token_roles(cluster: Cluster) -> tuple[str, ...]:
    """The roles whose tokens are issued: super users, own processes, then those of the spec."""
    auth = cluster.spec.auth
    users = auth.super_users
    own = (users.broker, users.operator, users.client, METRICS_ROLE, JOBS_ROLE)
    return tuple(dict.fromkeys((*own, *auth.authentication.jwt.roles)))


def tls_secret(cluster: Cluster, component: str) -> str:
    """The Secret with a component's certificate, by the name of Pulsar's chart."""
    return f"{cluster.name}-tls-{component}"


def token_secret(cluster: Cluster, role: str) -> str:
    """The Secret with a role's token, by the name of Pulsar's chart."""
    return f"{cluster.name}-token-{role}"


def token_key_secret(cluster: Cluster) -> str:
    """The Secret with the token key, by the name of Pulsar's chart."""
    symmetric = cluster.spec.auth.authentication.jwt.using_secret_key
    return f"{cluster.name}-token-{'symmetric' if symmetric else 'asymmetric'}-key"


def names_of(cluster: Cluster, component: str) -> Names:
    """The subject of a component's certificate, and every name by which peers reach it."""
    name, namespace = cluster.object_name(component), cluster.namespace
    ends = [f"{namespace}.svc", *([f"{namespace}.svc.{cluster.domain}"] if cluster.domain else [])]

    def service(service_name: str) -> tuple[str, ...]:
        full = (f"{service_name}.{end}" for end in ends)
        return (service_name, f"{service_name}.{namespace}", *full)

    pods = tuple(f"*.{name}.{end}" for end in ends)
    by_address = f"*.{cluster.pod_domain}"
    match component:
        case "broker":
            extra = cluster.spec.tls.broker
            dns = tuple(dict.fromkeys((*service(name), by_address, *extra.dns_names)))
            return Names(name, dns, tuple(extra.ip_addresses), is_server=True)
        case "bookie":
            return Names(name, (*service(name), *pods), is_server=True)
        case "etcd":
            dns = (*service(name), *pods, *service(f"{name}-client"), "localhost")
            # Members are clients of each other and of themselves.
            return Names(name, dns, ("127.0.0.1", "::1"), is_server=True, is_client=True)
        case "recovery":
            return Names(name, (by_address,), is_server=True)
        case _:
            # A role is named after the component, not after the certificate.
            return Names(name.removesuffix("-client"), is_client=True)


def server_settings(cluster: Cluster, *, mutual: bool) -> dict[str, str]:
    """The TLS files of a component's ports. `mutual`: clients must present a certificate."""
    if not cluster.has_tls:
        return {}
    return {
        "tlsCertificateFilePath": CERTIFICATE_FILE,
        "tlsKeyFilePath": KEY_FILE,
        "tlsTrustCertsFilePath": TRUST_FILE,
        "tlsRequireTrustedClientCertOnConnect": str(mutual).lower(),
    }


def health_settings(cluster: Cluster) -> dict[str, str]:
    """TLS of the port of health and metrics of bookies and autorecovery."""
    return {"httpServerTlsEnable": "true"} if cluster.has_tls else {}


def bookie_settings(cluster: Cluster) -> dict[str, str]:
    """The bookies' settings: clients need a certificate of the cluster."""
    if not cluster.has_tls:
        return {}
    return {
        **server_settings(cluster, mutual=True),
        **health_settings(cluster),
        **ledger_client_settings(cluster),
        "bookie_tls": "optional" if cluster.spec.tls.bookie.plain else "required",
        **_roles_at_bookies(cluster),
    }


def _roles_at_bookies(cluster: Cluster) -> dict[str, str]:
    """The roles that write ledgers and those that read them.

    Certificates that were brought along may have any names, so each of them may write.
    """
    if cluster.spec.tls.bookie.plain or cluster.spec.tls.issuer != "Operator":
        return {}
    members = (cluster.object_name(component) for component in ("broker", "bookie", "recovery"))
    return {
        "bookie_member_roles": ",".join(members),
        "bookie_reader_roles": cluster.object_name("jobs"),
    }


def ledger_client_settings(cluster: Cluster) -> dict[str, str]:
    """The TLS of connections to bookies."""
    if not cluster.has_tls:
        return {}
    return {
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSCertificateFilePath": CLIENT_CERTIFICATE_FILE,
        "bookkeeperTLSKeyFilePath": CLIENT_KEY_FILE,
        "bookkeeperTLSTrustCertsFilePath": TRUST_FILE,
    }


def job_settings() -> dict[str, str]:
    """The variables by which a Spark job reaches bookies and brokers with TLS."""
    return {
        "MAGNETAR_BOOKKEEPER_TLS": "true",
        "MAGNETAR_TLS_CERT_FILE": CLIENT_CERTIFICATE_FILE,
        "MAGNETAR_TLS_KEY_FILE": CLIENT_KEY_FILE,
        "MAGNETAR_TLS_TRUST_FILE": CLIENT_TRUST_FILE,
    }


def job_token_settings() -> dict[str, str]:
    """The variable by which a Spark job finds its token for the admin REST."""
    return {"MAGNETAR_TOKEN_FILE": f"{TOKEN_DIR}/token"}


def broker_settings(cluster: Cluster) -> dict[str, str]:
    """The brokers' settings for TLS, authentication and authorization."""
    settings = server_settings(cluster, mutual=False) | ledger_client_settings(cluster)
    if cluster.has_tls:
        settings |= {
            "brokerServicePortTls": str(PULSAR_TLS_PORT),
            "webServicePortTls": str(HTTPS_PORT),
            "brokerClientTlsEnabled": "true",
            "brokerClientTrustCertsFilePath": TRUST_FILE,
            "brokerClientCertificateFilePath": CLIENT_CERTIFICATE_FILE,
            "brokerClientKeyFilePath": CLIENT_KEY_FILE,
        }
    return settings | _authentication(cluster) | _authorization(cluster)


def broker_defaults(cluster: Cluster) -> dict[str, str]:
    """Settings of a closed cluster that `spec.broker.config` may change."""
    return {"authenticateMetricsEndpoint": "true"} if cluster.authenticates else {}


def _authentication(cluster: Cluster) -> dict[str, str]:
    if not cluster.authenticates:
        return {}
    authentication = cluster.spec.auth.authentication
    providers = [TOKEN_PROVIDER, *([OPENID_PROVIDER] if authentication.openid else [])]
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": ",".join(providers),
        "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
        "brokerClientAuthenticationParameters": f"file://{TOKEN_DIR}/token",
    }
    if authentication.jwt.using_secret_key:
        settings["tokenSecretKey"] = f"file://{TOKEN_KEY_DIR}/secret.key"
    else:
        settings["tokenPublicKey"] = f"file://{TOKEN_KEY_DIR}/public.key"
    if authentication.jwt.generate_secrets:
        settings["MAGNETAR_TOKEN_KEY_SET"] = f"file://{TOKEN_KEY_DIR}/jwks.json"
    return settings | authentication.openid


def _authorization(cluster: Cluster) -> dict[str, str]:
    auth = cluster.spec.auth
    if not auth.authorization.enabled:
        return {}
    users = auth.super_users
    manager = () if users.manager is None else (users.manager,)
    roles = dict.fromkeys((users.broker, users.operator, users.client, *manager))
    return {
        "authorizationEnabled": "true",
        "superUserRoles": ",".join(roles),
        "MAGNETAR_OBSERVER_ROLES": JOBS_ROLE,
    }


def files(cluster: Cluster, component: str) -> tuple[list[Object], list[Object]]:
    """The volumes of a component's pod with its secrets, and the mounts of its container."""
    volumes: list[Object] = []
    mounts: list[Object] = []

    def add(name: str, secret: str, path: str, items: Mapping[str, str] | None = None) -> None:
        source: Object = {"secretName": secret, "defaultMode": FILE_MODE}
        if items:
            source["items"] = [{"key": key, "path": file} for key, file in items.items()]
        volumes.append({"name": name, "secret": source})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})

    certificates = tls_components(cluster) if cluster.has_tls else ()
    if component in certificates:
        add("tls", tls_secret(cluster, component), TLS_DIR)
    if client_of(component) in certificates:
        add("tls-client", tls_secret(cluster, client_of(component)), CLIENT_DIR)
    if cluster.authenticates and component == BROKER:
        jwt = cluster.spec.auth.authentication.jwt
        keys = {SECRET_KEY: "secret.key"} if jwt.using_secret_key else {PUBLIC_KEY: "public.key"}
        # The private key stays in the Secret: brokers verify tokens, and issue none.
        if jwt.generate_secrets:
            keys[KEY_SET] = "jwks.json"
        add("token-key", token_key_secret(cluster), TOKEN_KEY_DIR, keys)
        role = cluster.spec.auth.super_users.broker
        add("token", token_secret(cluster, role), TOKEN_DIR, {TOKEN: "token"})
    return volumes, mounts


def metadata_files(cluster: Cluster) -> dict[str, str]:
    """The variables by which a component reaches etcd with TLS."""
    if not cluster.etcd_has_tls:
        return {}
    return {
        "MAGNETAR_METADATA_TLS_CA_FILE": CLIENT_TRUST_FILE,
        "MAGNETAR_METADATA_TLS_CERT_FILE": CLIENT_CERTIFICATE_FILE,
        "MAGNETAR_METADATA_TLS_KEY_FILE": CLIENT_KEY_FILE,
    }


def digest_of_trust(bundle: bytes) -> str:
    """The value of TRUST_DIGEST for a bundle of authorities in any order; empty without one."""
    end = "-----END CERTIFICATE-----"
    parts = [part.strip() for part in bundle.decode(errors="replace").split(end)]
    return digest(sorted(filter(None, parts))) if bundle else ""


def trust_config_map(cluster: Cluster, bundle: bytes) -> Object:
    """The ConfigMap with the authorities that clients trust. It has no secret."""
    return cluster.object(
        CONFIG_MAP, BROKER, cluster.object_name("ca"), data={TRUST: bundle.decode()}
    )
