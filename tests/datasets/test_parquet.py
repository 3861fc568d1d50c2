import datetime
import math
from decimal import Decimal

import pytest

from relax_core.api.errors import ConfigError, PluginError
from relax_core.api.rows import Task
from relax_core.datasets.config import JsonlDatasetConfig, ParquetDatasetConfig
from relax_core.datasets.jsonl import JsonlDataset
from relax_core.datasets.parquet import ROWS_AT_ONCE, ParquetDataset
from relax_core.testing.dataset import DatasetContract

pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
from pyarrow import parquet  # noqa: E402

ROWS = [{"prompt": "1+1=", "label": "2", "level": 3}, {"prompt": "1+2=", "label": "3", "level": None}]


@pytest.fixture
def write(tmp_path, context):
    def write(rows, name="tasks.parquet", schema=None, **keys):
        path = tmp_path / name
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
        return ParquetDataset(ParquetDatasetConfig(path=path, **keys), context)

    return write


class TestParquetContract(DatasetContract):
    @pytest.fixture
    def build(self, write):
        return lambda: write(ROWS)

    @pytest.fixture
    def other(self, write):
        return write([*ROWS, {"prompt": "1+3="}], "other.parquet")


def test_other_columns_are_the_metadata(write):
    dataset = write(ROWS)
    assert [dataset[0], dataset[1]] == [Task(0, "1+1=", "2", {"level": 3}), Task(1, "1+2=", "3", {"level": None})]


def test_messages_are_lists_of_structs_and_what_is_null_in_them_is_absent(write):
    messages = [
        {"role": "user", "content": "hi", "name": None, "tags": [{"a": 1, "b": None}]},
        {"role": "assistant", "content": "ho", "name": "x", "tags": None},
    ]
    assert write([{"prompt": messages}])[0].prompt == [
        {"role": "user", "content": "hi", "tags": [{"a": 1}]},
        {"role": "assistant", "content": "ho", "name": "x"},
    ]


def test_named_keys_and_only_their_columns_are_read(write):
    row = {"question": "1+1=", "answer": 2, "info": {"level": 3}, "picture": b"no JSON"}
    dataset = write([row], prompt_key="question", label_key="answer", metadata_key="info")
    assert dataset[0] == Task(0, "1+1=", 2, {"level": 3})


def test_two_answers_are_the_label(write):
    answer = [{"role": "assistant", "content": "2", "name": None}]
    row = {"prompt": "1+1=", "chosen": answer, "rejected": "3", "info": {"level": 3}, "picture": b"no JSON"}
    label = {"chosen": [{"role": "assistant", "content": "2"}], "rejected": "3"}
    assert write([row], metadata_key="info")[0] == Task(0, "1+1=", label, {"level": 3})
    renamed = {**row, "best": answer}
    assert write([renamed], metadata_key="info", chosen_key="best")[0].label == label
    with pytest.raises(ConfigError, match="has no column 'rejecte'; did you mean 'rejected'"):
        write([row], metadata_key="info", rejected_key="rejecte")


def test_maps_are_objects(write):
    schema = pyarrow.schema([("prompt", pyarrow.string()), ("info", pyarrow.map_(pyarrow.string(), pyarrow.int64()))])
    assert write([{"prompt": "a", "info": {"b": 1}}], schema=schema)[0].metadata == {"info": {"b": 1}}


def test_the_same_tasks_as_from_json_lines(write, tmp_path, context):
    rows = [{"prompt": f"{number}+1=", "label": str(number + 1), "more": [number]} for number in range(5)]
    lines = tmp_path / "tasks.jsonl"
    lines.write_text("\n".join(map(str, rows)).replace("'", '"'))
    expected, found = JsonlDataset(JsonlDatasetConfig(path=lines), context), write(rows)
    assert [found[index] for index in range(5)] == [expected[index] for index in range(5)]


def test_rows_keep_their_place_across_what_is_read_at_once(write):
    size = ROWS_AT_ONCE + 2
    dataset = write([{"prompt": f"{number}"} for number in range(size)])
    assert [dataset[index].prompt for index in range(size)] == [str(number) for number in range(size)]


def test_the_fingerprint_covers_content_and_keys(write):
    rows = [{"prompt": "a", "label": "b", "c": "d"}]
    prints = {
        write(rows).fingerprint,
        write([*rows, *rows]).fingerprint,
        write(rows, label_key="c").fingerprint,
        write(rows, prompt_key="c").fingerprint,
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": ""}, "'prompt' is empty"),
        ({"prompt": None}, "'prompt' must be a string or a list of messages"),
        ({"prompt": "a", "when": datetime.date(2020, 1, 1)}, "'when' is not a JSON value: Object of type date"),
        ({"prompt": "a", "price": Decimal("1.5")}, "'price' is not a JSON value: Object of type Decimal"),
        ({"prompt": "a", "score": math.nan}, "'score' is not a JSON value: Out of range float"),
    ],
)
def test_a_bad_row_is_named(write, row, message):
    with pytest.raises(ConfigError) as error:
        write([{"prompt": "a", **{key: None for key in row if key != "prompt"}}, row])
    assert f"tasks.parquet: row 1: {message}" in str(error.value)


def test_a_message_without_role_is_named(write):
    with pytest.raises(ConfigError, match=r"row 0: 'prompt' \[0\] must be an object with the key 'role'"):
        write([{"prompt": [{"content": "a"}]}])


def test_metadata_must_be_an_object(write):
    with pytest.raises(ConfigError, match="row 0: 'label' must be an object, but is of type str"):
        write(ROWS, metadata_key="label")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompt_key": "prompts"}, "has no column 'prompts'; did you mean 'prompt'?"),
        ({"label_key": "labels"}, "has no column 'labels'; did you mean 'label'?"),
        ({"metadata_key": "levels"}, "has no column 'levels'; did you mean 'level'?"),
    ],
)
def test_a_column_that_is_asked_for_must_be_there(write, keys, message):
    with pytest.raises(ConfigError) as error:
        write(ROWS, **keys)
    assert f"tasks.parquet {message}" in str(error.value)


def test_no_tasks(write):
    with pytest.raises(ConfigError, match=r"tasks\.parquet has no tasks"):
        write([], schema=pyarrow.schema([("prompt", pyarrow.string())]))


def test_no_file_and_no_parquet(tmp_path, context):
    with pytest.raises(ConfigError, match=r"absent\.parquet: No such file"):
        ParquetDataset(ParquetDatasetConfig(path=tmp_path / "absent.parquet"), context)
    broken = tmp_path / "broken.parquet"
    broken.write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigError, match=r"broken\.parquet is no sound Parquet file"):
        ParquetDataset(ParquetDatasetConfig(path=broken), context)


def test_text_that_is_not_utf8(tmp_path, context):
    path = tmp_path / "latin.parquet"
    text = pyarrow.array([b"\xff"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"prompt": text}), path)
    with pytest.raises(ConfigError, match=r"latin\.parquet is no sound Parquet file: .*UTF8"):
        ParquetDataset(ParquetDatasetConfig(path=path), context)


def test_without_the_extra_it_says_what_to_install(context, monkeypatch):
    monkeypatch.setattr("relax_core.datasets.parquet.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r'pip install "relax-core\[parquet\]"'):
        ParquetDataset(ParquetDatasetConfig(path="tasks.parquet"), context)
