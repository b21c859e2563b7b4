"""Measurements are of the files of tests as they were when they were collected."""

from pathlib import Path

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
