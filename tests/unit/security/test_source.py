"""The places of keys, in Pulsar's forms and order."""

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.security.errors import ConfigurationError
from magnetar.security.secret import Secret
from magnetar.security.source import SOURCE_BYTES_MAX, KeySource

KEY = bytes(range(256))
ENCODED = base64.b64encode(KEY).decode()


@pytest.mark.parametrize(
    "text", [f"data:;base64,{ENCODED}", f"data:application/octet-stream;base64,{ENCODED}", ENCODED]
)
def test_an_inline_key_is_decoded(text: str) -> None:
    assert KeySource.parse("tokenSecretKey", Secret(text)).read() == KEY


def test_a_data_url_without_base64_is_text() -> None:
    assert KeySource.parse("k", "data:,a%20b").read() == b"a b"
    assert KeySource.parse("k", f"data:base64,{ENCODED}").read() == ENCODED.encode()


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_a_file_is_read_each_time(tmp_path: Path, form: str) -> None:
    path = tmp_path / "secret key"
    path.write_bytes(KEY)
    source = KeySource.parse("k", form.format(str(path)))
    assert source.read() == KEY
    before = source.stamp()
    path.write_bytes(b"other")
    assert source.read() == b"other"
    assert source.stamp() != before


def test_an_escaped_file_url_is_unescaped(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(KEY)
    assert KeySource.parse("k", f"file://{tmp_path}/a%20b").read() == KEY


def test_an_existing_path_precedes_base64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("abcd").write_bytes(KEY)
    assert KeySource.parse("k", "abcd").read() == KEY
    assert KeySource.parse("k", "abce").read() == base64.b64decode("abce")


def test_errors_name_the_setting_and_show_no_key(tmp_path: Path) -> None:
    for text in ("not base64: secret", "data:;base64,?secret?", "data:secret", "file:"):
        with pytest.raises(ConfigurationError) as refused:
            KeySource.parse("tokenSecretKey", Secret(text))
        assert "tokenSecretKey" in str(refused.value)
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="absent of tokenSecretKey: No such file"):
        KeySource.parse("tokenSecretKey", f"file://{tmp_path}/absent").read()


def test_a_file_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(SOURCE_BYTES_MAX))
    assert len(KeySource.parse("k", str(path)).read()) == SOURCE_BYTES_MAX
    path.write_bytes(bytes(SOURCE_BYTES_MAX + 1))
    with pytest.raises(ConfigurationError, match="larger"):
        KeySource.parse("k", str(path)).read()


@given(st.binary(max_size=200))
def test_any_text_is_a_source_or_refused(raw: bytes) -> None:
    try:
        source = KeySource.parse("k", Secret(raw))
        source.read()
    except ConfigurationError:
        pass
