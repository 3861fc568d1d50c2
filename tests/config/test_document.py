from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import ConfigError
from relax_core.config.document import dump_yaml, parse_yaml, read_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("3.", 3.0),
        ("010", 10),
        ("-7", -7),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2026-01-31", "2026-01-31"),
        ("", None),
        ("~", None),
        (".inf", float("inf")),
        ("e5", "e5"),
        ("'1e-3'", "1e-3"),
        ("[1, [a, {b: c}]]", [1, ["a", {"b": "c"}]]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_yaml(text)
    assert (found, type(found)) == (value, type(value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_what_is_dumped_is_read_again(value: Any) -> None:
    again = parse_yaml(dump_yaml(value))
    assert again == value
    assert repr(again) == repr(value)  # 1, 1.0 and true are equal, but not the same


@pytest.mark.parametrize(
    "text", ["1e-3", "no", "true", "12", "null", "", "a: b", "- x", "<<", "2026-01-31", "é", "a\n b"]
)
def test_text_stays_text(text: str) -> None:
    assert parse_yaml(dump_yaml({"key": text})) == {"key": text}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed: 1\nmodel:\n  path: a\n  path: b\n", "line 4, column 3: key 'path' is given twice"),
        ("a: {b: 1, b: 1}", "line 1, column 11: key 'b' is given twice"),
        ("seed: 1\nseed: 2\n", "line 2, column 1: key 'seed' is given twice"),
        ("a: [1, 2\nb: 3\n", "line 2, column 2: expected ',' or ']', but got ':'"),
        ("a:\n\tb: 1", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("1: a", "line 1, column 1: a key must be text; write '1' in quotes"),
        ("true: a", "line 1, column 1: a key must be text; write 'true' in quotes"),
        ("a: !!python/object:os.system x", "line 1, column 4: could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
        ("a: !!set {x}", "a value is no mapping, list, text, number, boolean or null"),
        ('a: "\\ud800"', "a value is no mapping, list, text, number, boolean or null"),
        ("a: &x [*x]", "a value is no mapping, list, text, number, boolean or null"),
    ],
)
def test_errors_name_line_and_column(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_document(file)
    assert str(caught.value).startswith(f"{file}: {line}")
    assert "\n" not in str(caught.value)


def test_merge_keys_are_no_duplicates() -> None:
    text = "a: &base {x: 1, y: 2}\nb: {<<: *base, y: 3}\n"
    assert parse_yaml(text) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}


@pytest.mark.parametrize("text", ["", "- a\n", "grpo"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"run.yaml: the file must hold a mapping such as `algorithm: grpo`, not "):
        read_document(tmp_path / "run.yaml")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin.yaml: not UTF-8 text \(byte 9\)"):
        read_document(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_document(tmp_path)
    (tmp_path / "bell.yaml").write_text("name: \x07\n")
    with pytest.raises(ConfigError, match=r"bell.yaml: position 6: unreadable character"):
        read_document(tmp_path / "bell.yaml")


@pytest.mark.parametrize("text", ["a\x85b", "\x85", "a\u2028b", "\u2029", "\ufeff", "日本\x85語"])
def test_line_breaks_of_unicode_survive(text: str) -> None:
    value = {text: [text]}
    assert parse_yaml(dump_yaml(value)) == value
