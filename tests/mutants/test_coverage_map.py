"""Measurements are of the files of tests as they were when they were collected."""

import pickle
from pathlib import Path

import pytest
from tests.mutants import coverage_map
from tests.mutants.coverage_map import CoverageMap, Measured


def test_a_file_that_changes_while_it_is_measured_is_measured_again(tmp_path: Path) -> None:
    file, kept = tmp_path / "test_it.py", tmp_path / "kept.pickle"
    file.write_text("before")
    name = str(file)
    coverage = CoverageMap(kept)
    assert not coverage.is_current(name)
    file.write_text("while it is measured")
    coverage.put({name: Measured(coverage.stamp(name))})
    assert not CoverageMap(kept).is_current(name)
    file.write_text("before")
    assert CoverageMap(kept).is_current(name)


def test_a_change_of_a_source_concerns_the_tests_that_ran_it_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage_map, "ROOT", tmp_path)
    for name in ("services/ran.py", "services/other.py", "tests/conftest.py", "tests/test_it.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    (tmp_path / "tests" / "support").mkdir()
    name, kept = "tests/test_it.py", tmp_path / "kept.pickle"
    coverage = CoverageMap(kept)
    lines = {"services/ran.py": {1: ["test"]}}
    coverage.put({name: Measured(coverage.stamp(name), lines=lines)})
    (tmp_path / "services" / "other.py").write_text("changed")
    assert CoverageMap(kept).is_current(name)
    (tmp_path / "services" / "ran.py").write_text("changed")
    assert not CoverageMap(kept).is_current(name)
    (tmp_path / "services" / "ran.py").write_text("services/ran.py")
    assert CoverageMap(kept).is_current(name)
    (tmp_path / "services" / "ran.py").unlink()
    assert not CoverageMap(kept).is_current(name)


def test_measurements_of_another_version_are_made_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pickle"
    kept.write_bytes(pickle.dumps({"tests/test_it.py": "of an older release"}))
    assert not CoverageMap(kept).is_current("tests/mutants/test_coverage_map.py")
