"""Files that are whole whenever the process is killed."""

import json
from pathlib import Path

import pytest

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.files import JsonLines, write_atomically


def test_lines_are_there_at_once_and_added_to_on_reopening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for number in (1, 2):
        lines = JsonLines(path)
        lines.append({"number": number, "text": "字 \udc80"})
        assert len(path.read_bytes().splitlines()) == number
        lines.close()
        lines.close()
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [
        {"number": 1, "text": "字 \udc80"},
        {"number": 2, "text": "字 \udc80"},
    ]


@pytest.mark.parametrize(("left", "kept"), [(b'{"a": 1}\n{"a"', b'{"a": 1}\n'), (b'{"a"', b""), (b"", b"")])
def test_a_torn_line_is_cut_off(tmp_path: Path, left: bytes, kept: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(left)
    lines = JsonLines(path)
    lines.append({"a": 2})
    lines.close()
    assert path.read_bytes() == kept + b'{"a": 2}\n'


def test_what_is_not_json_leaves_no_trace(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError):
        lines.append({"a": float("nan")})
    with pytest.raises(TypeError):
        lines.append({"a": object()})
    lines.close()
    assert (tmp_path / "ledger.jsonl").read_bytes() == b""


def test_a_full_disk_is_one_line_that_names_the_file() -> None:
    with pytest.raises(RelaxError, match=r"^/dev/full could not be written: .*No space left on device$"):
        JsonLines(Path("/dev/full")).append({"line": 1})


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")
    write_atomically(path, "new 字")
    assert path.read_text(encoding="utf-8") == "new 字"

    def killed(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("relax_core.checkpoint.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "half")
    assert path.read_text(encoding="utf-8") == "new 字"
