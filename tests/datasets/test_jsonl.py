import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relax_core.api.errors import ConfigError
from relax_core.api.rows import Task
from relax_core.datasets.config import JsonlDatasetConfig
from relax_core.datasets.jsonl import JsonlDataset
from relax_core.testing.dataset import DatasetContract

LINES = (
    '{"prompt": "1+1=", "label": "2", "level": 3}\n\n{"prompt": [{"role": "user", "content": "hi"}], "label": null}\n'
)


@pytest.fixture
def write(tmp_path, context):
    def write(content, **keys):
        path = tmp_path / "tasks.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return JsonlDataset(JsonlDatasetConfig(path=path, **keys), context)

    return write


class TestJsonlContract(DatasetContract):
    @pytest.fixture
    def build(self, write):
        return lambda: write(LINES)

    @pytest.fixture
    def other(self, tmp_path, context):
        path = tmp_path / "other.jsonl"
        path.write_text(LINES.replace("1+1", "1+2"))
        return JsonlDataset(JsonlDatasetConfig(path=path), context)


def test_other_keys_are_the_metadata_and_blank_lines_are_skipped(write):
    dataset = write(LINES)
    assert len(dataset) == 2
    assert dataset[0] == Task(0, "1+1=", "2", {"level": 3})
    assert dataset[1] == Task(1, [{"role": "user", "content": "hi"}], None, {})


def test_named_keys(write):
    line = '{"question": "1+1=", "answer": 2, "info": {"level": 3}, "rest": 1}'
    dataset = write(line, prompt_key="question", label_key="answer", metadata_key="info")
    assert dataset[0] == Task(0, "1+1=", 2, {"level": 3})


PAIR = '{"prompt": "1+1=", "chosen": "2", "rejected": "", "level": 3}'


def test_two_answers_are_the_label(write):
    assert write(PAIR)[0] == Task(0, "1+1=", {"chosen": "2", "rejected": ""}, {"level": 3})
    message = '{"prompt": "1+1=", "good": [{"role": "assistant", "content": "2"}], "rejected": "3", "chosen": 1}'
    label = {"chosen": [{"role": "assistant", "content": "2"}], "rejected": "3"}
    assert write(message, chosen_key="good")[0] == Task(0, "1+1=", label, {"chosen": 1})


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ('{"prompt": "a", "chosen": "b"}', {}),
        ('{"prompt": "a", "chosen": "b", "rejected": "c", "label": "d"}', {}),
        ('{"prompt": "a", "chosen": "b", "rejected": "c", "best": "d"}', {"label_key": "best"}),
    ],
)
def test_a_label_or_a_single_answer_is_no_pair(write, line, keys):
    task = write(line, **keys)[0]
    assert task.label in (None, "d")
    assert task.metadata["chosen"] == "b"


@pytest.mark.parametrize(
    ("line", "keys", "reason"),
    [
        ('{"prompt": "a", "chosen": "b", "rejecte": "c"}', {"chosen_key": "chosen"}, "has no key 'rejected'; did you"),
        ('{"prompt": "a", "chosen": 1, "rejected": "c"}', {}, "'chosen' must be a string or a list of messages"),
        ('{"prompt": "a", "chosen": "b", "rejected": [{"role": 1}]}', {}, r"'rejected' \[0\] must be an object with"),
    ],
)
def test_a_wrong_pair_is_an_error_with_its_line(write, line, keys, reason):
    with pytest.raises(ConfigError, match=f"tasks.jsonl:2: {reason}"):
        write(f"{PAIR}\n{line}", **keys)


def test_the_fingerprint_covers_content_and_keys(write):
    line = '{"prompt": "a", "label": "b", "b": "b", "c": "d"}'
    prints = {
        write(line).fingerprint,
        write(line + "\n").fingerprint,
        write(line, label_key="c").fingerprint,
        write(line, prompt_key="c").fingerprint,
        write(line, chosen_key="b", rejected_key="c").fingerprint,
    }
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'prompt': 1}", "not JSON in UTF-8: Expecting property name"),
        ('{"prompt": "a", "label": NaN}', "not JSON in UTF-8: NaN is not a JSON value"),
        (b'{"prompt": "\xff"}', "not JSON in UTF-8: 'utf-8' codec can't decode"),
        ('["a"]', "must be a JSON object, but is of type list"),
        ('{"prompts": "a"}', "has no key 'prompt'; did you mean 'prompts'?"),
        ('{"prompt": ""}', "'prompt' is empty"),
        ('{"prompt": 3}', "'prompt' must be a string or a list of messages"),
        ('{"prompt": []}', "'prompt' must be a string or a list of messages"),
        ('{"prompt": [{"content": "a"}]}', "'prompt' [0] must be an object with the key 'role'"),
        ('{"prompt": [{"role": "user"}]}', "'prompt' [0] must have 'content'"),
    ],
)
def test_a_bad_line_is_named(write, line, message):
    content = b'{"prompt": "a"}\n\n' + (line if isinstance(line, bytes) else line.encode())
    with pytest.raises(ConfigError) as error:
        write(content)
    assert f"tasks.jsonl:3: {message}" in str(error.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label_key": "labels"}, "tasks.jsonl:1: has no key 'labels'; did you mean 'label'?"),
        ({"metadata_key": "infos"}, "tasks.jsonl:1: has no key 'infos'; did you mean 'info'?"),
        ({"metadata_key": "label"}, "tasks.jsonl:1: 'label' must be an object, but is of type str"),
    ],
)
def test_a_key_that_is_asked_for_must_be_there(write, keys, message):
    with pytest.raises(ConfigError) as error:
        write('{"prompt": "a", "label": "b", "info": {}}', **keys)
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_no_tasks(write, content):
    with pytest.raises(ConfigError, match=r"tasks\.jsonl has no tasks"):
        write(content)


def test_no_file(tmp_path, context):
    with pytest.raises(ConfigError, match=r"absent\.jsonl: No such file"):
        JsonlDataset(JsonlDatasetConfig(path=tmp_path / "absent.jsonl"), context)


def test_half_surrogate_pairs_are_replaced_and_counted(write, counts):
    dataset = write('{"prompt": "a\\ud83d", "label": "\\ud83d\\ude00"}\n{"prompt": "b"}\n')
    assert (dataset[0].prompt, dataset[0].label) == ("a\ufffd", "\U0001f600")
    assert dataset[1].prompt == "b"
    assert counts == {"dataset/lone_surrogates": 1}


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v, max_size=2))
ROWS = st.lists(st.tuples(st.text(min_size=1), VALUES, VALUES), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(ROWS, st.sampled_from(["\n", "\r\n", "\n\n \n"]), st.booleans())
def test_every_task_comes_back_from_its_offset(write, rows, line_end, ascii_only):
    lines = [
        json.dumps({"prompt": prompt, "label": label, "more": more}, ensure_ascii=ascii_only)
        for prompt, label, more in rows
    ]
    dataset = write("\ufeff" + line_end.join(lines))
    found = [dataset[index] for index in reversed(range(len(dataset)))][::-1]
    assert found == [Task(index, p, label, {"more": more}) for index, (p, label, more) in enumerate(rows)]
