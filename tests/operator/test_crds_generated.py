"""The generated CRDs: up to date, all of the registry, described and bounded throughout."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar.policies.policy import Level
from magnetar.policies.registry import at
from magnetar.policies.types import Record
from magnetar_operator.models import crdgen
from magnetar_operator.models.kinds import BY_KIND, KINDS, CustomKind
from magnetar_operator.models.policy_schema import of_policy
from magnetar_operator.models.schema import PRESERVE, Schema
from magnetar_operator.models.values import all_to_rest

CRDS = crdgen.ROOT / "crds"
SAMPLES = sorted((CRDS / "samples").glob("*.yaml"))
KUBERNETES_SHORT = {"cm", "cs", "csr", "deploy", "ds", "ep", "ev", "hpa", "ing", "limits", "netpol",
                    "no", "ns", "pc", "pdb", "po", "pv", "pvc", "quota", "rc", "rs", "sa", "sc",
                    "sts", "svc", "crd", "crds", "cj"}  # fmt: skip
STREAMNATIVE_SHORT = {"pconn", "ptenant", "pns", "ptopic", "ppermission", "ppackage", "pfunction",
                      "psink", "psource", "pgeo", "psub"}  # fmt: skip


def spec_of(kind: CustomKind) -> Schema:
    schema: Schema = crdgen.whole(kind)["properties"]["spec"]
    return schema


def walk(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, one in schema.get("properties", {}).items():
        yield from walk(one, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


def everything() -> Iterator[tuple[str, Schema]]:
    for kind in KINDS:
        for part in ("spec", "status"):
            yield from walk(crdgen.whole(kind)["properties"][part], f"{kind.kind}.{part}")


def documents(sample: Path) -> list[dict[str, Any]]:
    return [manifest for manifest in yaml.safe_load_all(sample.read_text()) if manifest]


def test_generated_files_are_current() -> None:
    stale = [
        path
        for path, text in crdgen.files().items()
        if not (crdgen.ROOT / path).is_file() or (crdgen.ROOT / path).read_text() != text
    ]
    assert not stale, "type: make crds"


def test_a_stale_file_is_named_and_regenerated(tmp_path: Path, capsys: Any) -> None:
    assert crdgen.main(["--root", str(tmp_path)]) == 0
    assert crdgen.main(["--root", str(tmp_path), "--check"]) == 0
    (tmp_path / "crds/topics.yaml").write_text("by hand")
    assert crdgen.main(["--root", str(tmp_path), "--check"]) == 1
    assert "crds/topics.yaml is stale: make crds" in capsys.readouterr().err
    assert (tmp_path / "crds/topics.yaml").read_text() == "by hand"


@pytest.mark.parametrize(
    ("kind", "level"), [("Namespace", Level.NAMESPACE), ("Topic", Level.TOPIC)]
)
def test_every_policy_of_the_registry_is_in_the_crd(kind: str, level: Level) -> None:
    properties = spec_of(BY_KIND[kind])["properties"]["policies"]["properties"]
    assert set(properties) == {policy.manifest for policy in at(level)}
    for policy in at(level):
        assert policy.text in properties[policy.manifest]["description"]
        if isinstance(policy.type, Record):
            assert set(properties[policy.manifest]["properties"]) == {
                field.manifest_name for field in policy.type.fields
            }
        rules = [
            item["rule"] for item in properties[policy.manifest].get("x-kubernetes-validations", ())
        ]
        wanted = [rule.cel for rule in getattr(policy.type, "rules", ())]
        assert rules == wanted + ([policy.limitation.cel] if policy.limitation else [])


def test_a_policy_has_no_schema_at_levels_that_lack_it() -> None:
    only_above = next(policy for policy in at(Level.NAMESPACE) if policy.topic is None)
    with pytest.raises(ValueError, match="is no policy of a topic"):
        of_policy(only_above, Level.TOPIC)


def test_every_field_is_described_in_a_sentence() -> None:
    for path, schema in everything():
        if path.endswith("{}") or (path.endswith("[]") and schema.get("type") != "object"):
            continue
        text = schema.get("description", "")
        assert text, path
        assert re.match(r"[\"`A-Z]|pulsar", text), (path, text)
        assert text.endswith((".", "…")), (path, text)


def test_everything_has_a_bound() -> None:
    """Without one the API server costs a rule as if the value were as long as can be."""
    for path, schema in everything():
        kind = schema.get("type")
        if kind == "array":
            assert "maxItems" in schema, path
        if kind == "string" and "enum" not in schema:
            assert "maxLength" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path
        if kind == "object":
            known = {"properties", "additionalProperties", PRESERVE} & set(schema)
            assert known, f"{path} would be pruned to nothing"


def test_only_the_listed_defaults_are_stored() -> None:
    stored = {path for path, schema in everything() if "default" in schema}
    assert stored == {
        "MagnetarCluster.spec.broker",
        "MagnetarCluster.spec.broker.replicas",
        "MagnetarCluster.spec.bookie",
        "MagnetarCluster.spec.bookie.replicas",
        "MagnetarCluster.spec.bookie.storage",
        "MagnetarCluster.spec.bookie.storage.size",
        "MagnetarCluster.spec.etcd.storage.size",
        "Tenant.spec.lifecyclePolicy",
        "Namespace.spec.lifecyclePolicy",
        "Topic.spec.lifecyclePolicy",
        "Subscription.spec.lifecyclePolicy",
        "Permission.spec.lifecyclePolicy",
    }


def test_short_names_are_ours_alone() -> None:
    short = [kind.short for kind in KINDS]
    assert short == ["mcluster", "mtenant", "mns", "mtopic", "msub", "mperm", "mspark"]
    assert not set(short) & (KUBERNETES_SHORT | STREAMNATIVE_SHORT)


def test_columns_name_existing_fields() -> None:
    for kind in KINDS:
        fields = {path for path, _ in walk(crdgen.whole(kind), "")}
        for column in kind.columns:
            path = re.sub(r"\[\?.*?\]", "[]", column.path)
            assert path.startswith(".metadata.") or path in fields, (kind.kind, column.path)


def test_rules_name_existing_fields() -> None:
    for path, schema in everything():
        for rule in schema.get("x-kubernetes-validations", ()):
            assert rule["message"], path
            if "fieldPath" in rule:
                assert rule["fieldPath"][1:].split(".")[0] in schema["properties"], (path, rule)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_models_parse_each_sample(sample: Path) -> None:
    for manifest in documents(sample):
        spec = BY_KIND[manifest["kind"]].spec.parse(manifest["spec"])
        assert BY_KIND[manifest["kind"]].spec.parse(spec.manifest()) == spec
        level = {"Namespace": Level.NAMESPACE, "Topic": Level.TOPIC}.get(manifest["kind"])
        if level is not None:
            assert all_to_rest(level, manifest["spec"]["policies"])


def test_there_is_a_sample_of_each_kind() -> None:
    sampled = {manifest["kind"] for sample in SAMPLES for manifest in documents(sample)}
    assert sampled == set(BY_KIND)


def test_the_reference_names_every_field_of_every_spec() -> None:
    page = (crdgen.ROOT / "docs/run/crds.md").read_text()
    for kind in KINDS:
        for path, _ in walk(spec_of(kind), ""):
            if path and not path.endswith(("{}", "[]")):
                assert f"`{path[1:].replace('{}', '')}`" in page, f"{kind.kind}.spec{path}"
