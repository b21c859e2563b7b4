"""A closed cluster by the operator: ports, rights, revocation, and a rotation of every secret.

The three values that close a cluster are the only ones that are not about time: lifetimes are as
short as the kubelet's update of mounted Secrets permits, so that the whole rotation is seen.
"""

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

from .load import Load, start_asker, start_idle, verdict
from .operated import APPLIED, CLUSTER_S_MAX, RESOURCES_S_MAX, SAMPLES, is_ready
from .ports import are_closed
from .world import READY_S_MAX, StepError, World, expect

CLOSED: Final[dict[str, Any]] = {
    "tls": {"enabled": True, "authority": {"settle": "45s"}},
    "auth": {
        "authentication": {
            "enabled": True,
            "jwt": {"roles": ["load", "shop"], "duration": "3m", "renewBefore": "90s"},
        },
        "authorization": {"enabled": True},
    },
}
REQUESTS: Final = {"requests": {"cpu": "20m", "memory": "64Mi"}}
STRANGER: Final = "stranger"
"""A client's pod with the authorities and without a token."""
SHOP: Final = "shop-load"
FAR: Final = "far"
"""A Tenant by address, and the Secret with its credentials."""
ROTATED_S_MAX: Final = 480.0
CUT_S_MAX: Final = 30.0
QUIET_S: Final = 3.0
ROTATE: Final = "magnetar.io/rotate=true"
BOOKIES: Final = 3
BROKERS: Final = 2
MEMBERS: Final = 3

ENTER: Final = """
import json, os, sys, pulsar
url, tokens = sys.argv[1], json.loads(sys.argv[2])
outcomes = []
for token in tokens:
    options = {"authentication": pulsar.AuthenticationToken(token)} if token else {}
    client = pulsar.Client(url, operation_timeout_seconds=10, tls_validate_hostname=True,
                           tls_trust_certs_file_path=os.environ["TRUST_FILE"], **options)
    try:
        client.create_producer("persistent://public/default/enter").close()
        outcomes.append("admitted")
    except pulsar.PulsarException as error:
        outcomes.append(type(error).__name__)
    client.close()
print("OUTCOMES", json.dumps(outcomes))
"""


@dataclass
class Issued:
    """The Secrets before their rotation, by name."""

    secrets: dict[str, dict[str, bytes]] = field(default_factory=dict)


def values(world: World, **more: Any) -> str:
    """The chart's values of a closed cluster, small enough for a laptop."""
    small: dict[str, Any] = {
        "etcd": {"resources": REQUESTS},
        "bookkeeper": {"resources": REQUESTS},
        "broker": {"resources": REQUESTS},
    }
    return world.chart_values(**{**small, **CLOSED, **more})


def install(world: World) -> None:
    """One command; clients get the authorities and tokens from what was issued."""
    world.has_tls = world.has_tokens = True
    made = values(
        world,
        operator={
            "enabled": True,
            "resources": REQUESTS,
            "adminSecrets": [{"namespace": world.kubectl.namespace, "secrets": [FAR]}],
        },
        components={"autorecovery": True, "toolset": True},
        autorecovery={"resources": REQUESTS},
    )
    world.install("install", values=made)
    wait_ready(world)
    start_asker(world)
    start_idle(world, STRANGER, "")


def wait_ready(world: World) -> None:
    """Until the MagnetarCluster and all of its pods are ready."""
    world.kubectl(
        "wait", f"mcluster/{world.cluster}", "--for=condition=Ready",
        f"--timeout={CLUSTER_S_MAX:.0f}s", timeout_s=CLUSTER_S_MAX + 10,
    )  # fmt: skip
    for component, count in {"etcd": MEMBERS, "bookie": BOOKIES, "broker": BROKERS}.items():
        world.wait_ready(component, count)


def ports(world: World) -> None:
    are_closed(world, STRANGER)


def secret(world: World, name: str) -> dict[str, bytes]:
    """The decoded fields of a Secret."""
    found = world.find("secret", name)
    expect(found, f"there is no Secret {name}")
    return {key: base64.b64decode(text) for key, text in ((found or {}).get("data") or {}).items()}


def issued_names(world: World) -> list[str]:
    """Every Secret that the operator issues: its labels say so."""
    label = f"app.kubernetes.io/managed-by=magnetar-operator,cluster={world.cluster}"
    items = world.kubectl.json("get", "secrets", "-l", label)["items"]
    return sorted(each["metadata"]["name"] for each in items)


def entered(world: World, *tokens: str) -> list[str]:
    """What the official client gets with each token; an empty one is none."""
    text = world.exec(
        STRANGER, "python", "-c", ENTER, world.service_url, json.dumps(tokens),
        timeout_s=READY_S_MAX,
    )  # fmt: skip
    line = next(each for each in text.splitlines() if each.startswith("OUTCOMES "))
    found: list[str] = json.loads(line.partition(" ")[2])
    return found


def resources(world: World) -> None:
    """The operator carries them out with its own token; roles have the rights they say."""
    for name in (*APPLIED, "permission"):
        world.kubectl("apply", "-f", SAMPLES / f"{name}.yaml")
    world.kubectl.apply(permission(world, "load", "public/default"))
    kinds = {
        "mtenant": ["shop"],
        "mns": ["orders"],
        "mtopic": ["orders-created"],
        "msub": ["billing"],
        "mperm": ["shop-orders", "load"],
    }
    for kind, names in kinds.items():
        for name in names:
            world.eventually(
                f"{kind}/{name} is Ready",
                lambda kind=kind, name=name: is_ready(world.find(kind, name)),  # type: ignore[misc]
                RESOURCES_S_MAX,
            )
    granted = world.get("/admin/v2/namespaces/shop/orders/permissions")
    expect(set(granted.get("shop", ())) == {"produce", "consume"}, f"REST says {granted}")
    roles = ("admin", "load", "shop")
    tokens = [secret(world, f"{world.cluster}-token-{role}")["TOKEN"].decode() for role in roles]
    damaged = tokens[0][:-8] + "AAAAAAAA"
    outcomes = entered(world, *tokens, "", damaged)
    expected = ["admitted", "admitted", "AuthorizationError"]
    expect(outcomes[:3] == expected, f"{roles}: {outcomes}")
    expect(
        not {"admitted"} & set(outcomes[3:]), f"without a token, with a damaged one: {outcomes[3:]}"
    )
    world.note(f"admin, load, shop, no token, damaged token: {', '.join(outcomes)}")


def by_address(world: World) -> None:
    """A resource with `adminUrl` has the credentials of its own Secret, and none without it."""
    url = f"https://{world.cluster}-broker.{world.kubectl.namespace}.svc:8443"
    fields = {
        "ADMIN_URL": url.encode(),
        "TOKEN": secret(world, f"{world.cluster}-token-admin")["TOKEN"],
        "ca.crt": secret(world, f"{world.cluster}-tls-broker")["ca.crt"],
    }
    data = {name: base64.b64encode(text).decode() for name, text in fields.items()}
    tenants = {FAR: {"adminSecret": {"name": FAR}}, STRANGER: {}}
    world.kubectl.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": FAR}, "data": data},
        *(
            {
                "apiVersion": "magnetar.io/v1alpha1",
                "kind": "Tenant",
                "metadata": {"name": name},
                "spec": {"adminUrl": url, **more},
            }
            for name, more in tenants.items()
        ),
    )
    world.eventually("the Tenant", lambda: is_ready(world.find("mtenant", FAR)), RESOURCES_S_MAX)

    def refusal() -> str | None:
        status = (world.find("mtenant", STRANGER) or {}).get("status", {})
        texts = [str(each.get("message")) for each in status.get("conditions", ())]
        return next((text for text in texts if "cannot be reached" in text or "401" in text), None)

    refused = world.eventually("the Tenant without credentials is refused", refusal)
    existing = world.get("/admin/v2/tenants")
    expect(FAR in existing, f"tenants: {existing}")
    expect(STRANGER not in existing, f"tenants: {existing}")
    world.kubectl("delete", "mtenant", FAR, "--timeout=60s", timeout_s=70)
    expect(FAR not in world.get("/admin/v2/tenants"), "the Tenant is not deleted there")
    world.kubectl("delete", "mtenant", STRANGER, "--timeout=60s", timeout_s=70)
    world.note(f"without a Secret: {refused}")


def permission(world: World, role: str, namespace: str) -> dict[str, Any]:
    """A Permission to send to and read from a namespace."""
    return {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "Permission",
        "metadata": {"name": role},
        "spec": {
            "clusterRef": {"name": world.cluster},
            "role": role,
            "namespace": namespace,
            "actions": ["produce", "consume"],
        },
    }


def rotate(world: World, issued: Issued) -> None:
    """Requests the replacement of everything at once: authority, key, certificates and tokens."""
    names = issued_names(world)
    issued.secrets = {name: secret(world, name) for name in names}
    expect(f"{world.cluster}-ca-tls" in names, f"Secrets: {names}")
    world.kubectl("annotate", "secret", *names, "--overwrite", ROTATE)
    world.note(f"{len(names)} Secrets: {', '.join(names)}")


def revoke(world: World, load: Load, shop: Load) -> None:
    """A Permission is deleted: its role's producers end, those of others do not."""
    shop.flows(at_least=20)
    world.kubectl("delete", "mperm", "shop-orders", "--timeout=60s", timeout_s=70)
    deleted = time.time()
    counts: list[int] = []

    def quiet() -> bool:
        counts.append(int(shop.status()["receipted"]))
        time.sleep(QUIET_S)
        return int(shop.status()["receipted"]) == counts[-1]

    world.eventually("the producer whose right was revoked is cut off", quiet, CUT_S_MAX)
    after_s = shop.status()["receipt_at"] - deleted
    load.flows(at_least=60)
    expect(shop.status()["receipted"] == counts[-1], "the revoked producer sends again")
    world.note(f"last receipt {after_s:+.1f} s after the Permission was gone; others go on")
    world.kubectl("delete", "pod", shop.pod, "--wait=false", "--grace-period=0", "--force")


def secrets_condition(world: World) -> dict[str, Any]:
    """The condition SecretsReady of the cluster."""
    status = (world.find("mcluster", world.cluster) or {}).get("status", {})
    found = [each for each in status.get("conditions", ()) if each["type"] == "SecretsReady"]
    return found[0] if found else {}


def expect_replaced(world: World, issued: Issued) -> None:
    """Raises StepError if something old is in a Secret, or still trusted."""
    for name, before in issued.secrets.items():
        now = secret(world, name)
        fields = {"tls.crt", "TOKEN", "PUBLICKEY"} & set(before)
        expect(fields, f"Secret {name} has none of the fields that are replaced")
        same = [each for each in fields if now[each] == before[each]]
        expect(not same, f"Secret {name}: {same} was not replaced")
    trust = secret(world, f"{world.cluster}-tls-broker")["ca.crt"]
    expect(trust.count(b"BEGIN CERTIFICATE") == 1, "more than one authority is trusted")
    keys = json.loads(secret(world, f"{world.cluster}-token-asymmetric-key")["JWKS"])["keys"]
    expect(len(keys) == 1, f"{len(keys)} token keys are trusted")


def rotated(world: World, load: Load, issued: Issued) -> None:
    """Until nothing old is trusted; then old tokens are refused, and the load had no error."""

    def done() -> bool:
        condition = secrets_condition(world)
        expect(condition.get("status") == "True", f"SecretsReady: {condition}")
        expect(condition.get("reason") == "Issued", f"SecretsReady: {condition.get('message')}")
        expect_replaced(world, issued)
        return True

    world.eventually("the rotation is complete", done, ROTATED_S_MAX)
    wait_ready(world)
    load.flows(at_least=60)
    found = load.status()
    expect(found["errors"] == 0, f"clients had {found['errors']} errors")
    token = issued.secrets[f"{world.cluster}-token-admin"]["TOKEN"].decode()
    outcomes = entered(world, token)
    expect(outcomes != ["admitted"], "a token of the previous key is admitted")
    world.note(f"{found['receipted']} receipts so far, no error of a client")


def nothing_was_lost(world: World, load: Load) -> None:
    """No receipt is lost, and no client had an error."""
    result = load.finish()
    world.note(verdict(result))
    if result["errors"]:
        raise StepError(f"clients had {result['errors']} errors: {result}")
    world.kubectl("delete", "pod", load.pod, "--wait=false", "--grace-period=0", "--force")
