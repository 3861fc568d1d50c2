from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from relax_core.api.errors import ConfigError
from relax_core.config.document import dump_yaml
from relax_core.config.fields import all_keys
from relax_core.config.load import load_run
from relax_core.config.run import EvalSetConfig, RunSections
from relax_core.config.sections import EACH, SECTIONS
from relax_core.config.selection import config_class
from relax_core.registry import registry

Key = tuple[str, ...]


SET = ("eval", "sets", "easy")
SECTION_KEYS = {tuple(SET[-1] if part == EACH else part for part in section.key): section for section in SECTIONS}
"""Component sections by where they stand in the documents of these tests."""


def run_keys() -> list[Key]:
    return [*all_keys(RunSections), *all_keys(EvalSetConfig, SET), *SECTION_KEYS]  # type: ignore[list-item]


def component_keys() -> Iterator[tuple[Key, str, Key]]:
    """Section, component and key of everything that can be set in any component of any section."""
    for place, section in SECTION_KEYS.items():
        for found in [found for found in registry().offers(section.kind) if found.plugin.status == "ok"]:
            for key in all_keys(config_class(found.component, section.base)):
                yield place, found.component.name, key  # type: ignore[misc]


RUN_KEYS = run_keys()
COMPONENT_KEYS = list(component_keys())


def put(document: dict[str, Any], key: Sequence[str], value: object) -> dict[str, Any]:
    """Sets a value in nested mappings, in place of anything that is no mapping.

    A value of a set is put into a document with a set in place of the only one.
    """
    if tuple(key[:-1])[: len(SET)] == SET and "sets" not in document["eval"]:
        document["eval"] = {"sets": {SET[-1]: {"dataset": document["eval"]["dataset"]}}}
    holder = document
    for part in key[:-1]:
        if not isinstance(holder.get(part), dict):
            holder[part] = {}
        holder = holder[part]
    holder[key[-1]] = value
    return document


def misspelt(key: Key) -> Key:
    """Two letters of the last part change places, or its last letter is there twice."""
    name = key[-1]
    swapped = name[0] + name[2:3] + name[1:2] + name[3:]
    return (*key[:-1], swapped if swapped != name else name + name[-1])


def refusal(document: Mapping[str, Any], overrides: Sequence[str] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run(None, overrides, document)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_document_of_these_tests_is_right(document: dict[str, Any]) -> None:
    config = load_run(None, base=document)
    assert [sink.name for sink in config.sinks] == ["console", "jsonl"]
    assert config.trainer.config.learning_rate == 1e-3


@pytest.mark.parametrize("key", RUN_KEYS, ids=".".join)
def test_a_misspelt_key_of_the_run_is_one_line_with_the_right_key(document: dict[str, Any], key: Key) -> None:
    wrong = misspelt(key)
    line = refusal(put(document, wrong, 7))
    assert "\n" not in line
    assert line == f"command line: {'.'.join(wrong)}: unknown key (value 7); did you mean {key[-1]!r}?"


@pytest.mark.parametrize(
    ("section", "name", "key"), COMPONENT_KEYS, ids=lambda part: part if isinstance(part, str) else ".".join(part)
)
def test_a_misspelt_key_of_a_component_is_one_line_with_the_right_key(
    document: dict[str, Any], section: Key, name: str, key: Key
) -> None:
    wrong = (*section, *misspelt(key))
    put(document, section, {"name": name})
    line = refusal(put(document, wrong, 7))
    assert "\n" not in line
    assert line == f"command line: {'.'.join(wrong)}: unknown key (value 7); did you mean {key[-1]!r}?"


@pytest.mark.parametrize("key", SECTION_KEYS, ids=".".join)
def test_a_misspelt_component_or_name_is_one_line_with_the_right_one(document: dict[str, Any], key: Key) -> None:
    name = registry().offers(SECTION_KEYS[key].kind)[0].component.name
    wrong = misspelt((name,))[0]
    for value in (wrong, {"name": wrong}):
        line = refusal(put(document, key, value))
        assert line.startswith(f"command line: {'.'.join(key)}")
        assert f"did you mean {name!r}?" in line
        assert "\n" not in line
    line = refusal(put(document, key, {"nmae": name}))
    assert line == f"command line: {'.'.join(key)}.nmae: unknown key (value \"{name}\"); did you mean 'name'?"


@pytest.mark.parametrize("key", [("sinks", 1), ("reward", 0), ("eval", "reward", 1)])
def test_items_of_lists_are_checked_and_named_by_their_index(document: dict[str, Any], key: tuple[Any, ...]) -> None:
    names = {"sinks": "console", "reward": "exact"}
    items = [{"name": names[key[-2]]} for _ in range(2)]
    items[key[-1]]["weigth"] = "1"
    assert f"{'.'.join(map(str, key))}.weigth: unknown key" in refusal(put(document, key[:-1], items))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    place=st.sampled_from([*COMPONENT_KEYS, *(((), None, key) for key in RUN_KEYS)]),
    position=st.integers(0, 20),
    letter=st.sampled_from("abcdeinorst_X9"),
    edit=st.sampled_from(["insert", "replace", "delete"]),
)
def test_no_misspelling_ever_passes(
    document: dict[str, Any], place: tuple[Key, str | None, Key], position: int, letter: str, edit: str
) -> None:
    section, component, key = place
    *parent, name = key
    position %= len(name)
    wrong = name[:position] + ("" if edit == "delete" else letter) + name[position + (edit != "insert") :]
    known = [known for *of, known in COMPONENT_KEYS if of == [section, component]] if component else RUN_KEYS
    assume(wrong and (*parent, wrong) not in [*known, ("name",)])
    spoilt = deepcopy(document)
    if component:
        put(spoilt, section, {"name": component})
    wrong_key = (*section, *parent, wrong)
    line = refusal(put(spoilt, wrong_key, "x"))
    assert line.startswith(f'command line: {".".join(wrong_key)}: unknown key (value "x"); ')
    assert "\n" not in line


@pytest.mark.parametrize("key", [key for key in RUN_KEYS if key not in SECTION_KEYS], ids=".".join)
def test_a_value_of_the_wrong_type_is_one_line_in_plain_words(document: dict[str, Any], key: Key) -> None:
    line = refusal(put(document, key, [{"x": 1}]))
    place, _, text = line.removeprefix("command line: ").partition(": ")
    assert "\n" not in line
    assert ".".join(key) in (place, place.rpartition(".")[0])  # or its first item
    assert "is n" in text  # is not, is neither
    assert "refused" not in text


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed=-1", "seed: -1 is less than 0, the least allowed"),
        ("seed=true", "seed: true is not a whole number"),
        ("updates=2.5", "updates: 2.5 is not a whole number"),
        ("updates='6'", 'updates: "6" is not a whole number'),
        ("name=5", "name: 5 is not text; put it in quotes"),
        ("mode=hybird", "mode: \"hybird\" is not 'colocate', 'hybrid' or 'fully_async'; did you mean 'hybrid'?"),
        ("sampling.top_p=1.5", "sampling.top_p: 1.5 is more than 1.0, the most allowed"),
        ("sampling.top_p=0", "sampling.top_p: 0 is not greater than 0.0"),
        ("sampling.stop=END", 'sampling.stop: "END" is not a list'),
        ('sampling.stop=[a, ""]', 'sampling.stop.1: "" is shorter than 1, the least length allowed'),
        ('eval.sampling.stop=[""]', 'eval.sampling.stop.0: "" is shorter than 1, the least length allowed'),
        ("sampling.stop_token_ids=[1, x]", 'sampling.stop_token_ids.1: "x" is not a whole number'),
        ("batch=8", "batch: 8 is not a mapping"),
        ("model.trust_remote_code=yes", 'model.trust_remote_code: "yes" is neither true nor false'),
        ("trainer.learning_rate=.nan", "trainer.learning_rate: NaN is not a finite number"),
        ("trainer.betas=[0.9]", "trainer.betas: [0.9] has too few items"),
        ("trainer.betas.1=2", "trainer.betas.1: 2 is not less than 1.0"),
        ("algorithm=5", "algorithm: 5 selects no component; write its name, or a mapping with `name`"),
        ("algorithm.name=5", "algorithm.name: 5 is not text"),
        ("sinks.0=null", "sinks.0: null selects no component; write its name, or a mapping with `name`"),
        ("reward=[]", "reward: [] selects no reward; leave the key out instead"),
        ("reward=python", "reward.function: missing"),
        (
            "reward={name: choice, letters: ABa}",
            "reward.letters: 'ABa' must be distinct capital letters",
        ),
        ("learning_rate=1", "learning_rate: unknown key (value 1); did you mean 'trainer.learning_rate'?"),
        (
            "sampling.xyz=1",
            "sampling.xyz: unknown key (value 1); known here: max_new_tokens, temperature, top_p, top_k, "
            "stop, stop_token_ids",
        ),
        ("dataset.api_key=s3cret", 'dataset.api_key: unknown key (value "***")'),
        ("dataset=null", "dataset.name: missing; known here: generated, jsonl, parquet, reasoning_gym"),
        ("eval.dataset=null", "eval.dataset.name: missing; known here: generated, jsonl, parquet, reasoning_gym"),
    ],
)
def test_wrong_values_are_told_in_plain_words(document: dict[str, Any], override: str, line: str) -> None:
    document["trainer"]["betas"] = [0.9, 0.95]
    assert refusal(document, [override]).startswith(f"command line: {line}")
    assert "\n" not in refusal(document, [override])


def test_all_problems_are_told_in_the_order_of_the_file(document: dict[str, Any]) -> None:
    document["eval"]["dataset"]["sise"] = 3
    document["model"]["dtyp"] = "float32"
    document["warmup"]["updates"] = -1
    lines = refusal(document).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["model.dtyp", "eval.dataset.sise", "warmup.updates"]


def test_a_wrong_trainer_key_is_not_told_again_for_the_warmup(document: dict[str, Any]) -> None:
    document["trainer"]["lerning_rate"] = 1
    assert "\n" not in refusal(document)


def test_resolved_is_loaded_again_as_the_same_run(document: dict[str, Any], tmp_path: Path) -> None:
    first = load_run(None, base=document)
    file = tmp_path / "resolved.yaml"
    file.write_text(dump_yaml(first.resolved()))
    again = load_run(file)
    assert again.resolved() == first.resolved()
    assert again.run == first.run
    assert again.source == str(file)
    assert again.warmup_trainer == first.warmup_trainer


def test_resolved_holds_every_key_of_every_section(document: dict[str, Any]) -> None:
    resolved = load_run(None, base=document).resolved()
    with_set = load_run(None, base=put(document, (*SET, "tasks"), 1)).resolved()
    for key in RUN_KEYS:
        holder: Any = with_set if key[: len(SET)] == SET else resolved
        for part in key:
            if holder is None:  # `model.init` and the like
                break
            assert part in holder, key
            holder = holder[part]


def test_defaults_of_components(model_folder: Path) -> None:
    config = load_run(
        None, base={"model": {"path": str(model_folder)}, "dataset": "generated", "reward": "exact", "epochs": 1}
    )
    chosen = (config.algorithm, config.trainer, config.engine, config.transport, config.weight_sync, *config.sinks)
    assert [choice.name for choice in chosen] == [
        "grpo", "torch", "torch", "memory", "local", "console", "jsonl", "tensorboard",
    ]  # fmt: skip
    assert config.eval_sets == ()
    assert (config.warmup_algorithm, config.warmup_dataset, config.warmup_trainer) == (None, None, None)


def test_evaluation_and_warmup_take_from_the_run_what_they_do_not_name(document: dict[str, Any]) -> None:
    del document["eval"]["reward"], document["warmup"]["algorithm"]
    document["trainer"]["betas"] = [0.5, 0.6]
    config = load_run(None, base=document)
    assert config.eval_sets[0].rewards == config.rewards
    assert config.run.eval is not None
    assert config.run.eval.sampling.temperature == 0
    assert config.warmup_algorithm is not None and config.warmup_algorithm.name == "sft"
    assert config.warmup_dataset is not None and config.warmup_dataset.config == config.dataset.config
    assert config.warmup_trainer is not None
    assert config.warmup_trainer.config == config.trainer.config.model_copy(update={"learning_rate": 1e-2})


def test_a_partial_evaluation_sampling_stays_greedy(document: dict[str, Any]) -> None:
    config = load_run(None, ["eval.sampling.max_new_tokens=9"], document)
    assert config.run.eval is not None
    assert (config.run.eval.sampling.max_new_tokens, config.run.eval.sampling.temperature) == (9, 0.0)


SETS = {
    "easy": {"dataset": {"name": "generated", "digits": 3}, "sampling": {"temperature": 0.5}, "samples_per_task": 4},
    "hard": {"dataset": {"name": "generated", "digits": 5}, "reward": [{"name": "exact", "weight": 2.0}]},
}


def test_a_set_takes_from_the_evaluation_what_it_leaves_out(document: dict[str, Any]) -> None:
    document["eval"] = {"every": 2, "tasks": 9, "sampling": {"max_new_tokens": 5, "top_p": 0.9}, "sets": SETS}
    easy, hard = load_run(None, base=document).eval_sets
    assert (easy.name, easy.dataset.section, easy.rewards[0].section) == ("easy", "eval.sets.easy.dataset", "reward")
    assert (easy.settings.tasks, easy.settings.samples_per_task) == (9, 4)
    assert easy.settings.sampling.model_dump(include={"max_new_tokens", "temperature", "top_p"}) == {
        "max_new_tokens": 5, "temperature": 0.5, "top_p": 0.9,
    }  # fmt: skip
    assert (hard.settings.samples_per_task, hard.settings.sampling.temperature) == (1, 0.0)
    assert (hard.rewards[0].section, hard.rewards[0].config.weight) == ("eval.sets.hard.reward.0", 2.0)
    document["eval"]["reward"] = {"name": "format", "pattern": "x"}
    assert [held_out.rewards[0].name for held_out in load_run(None, base=document).eval_sets] == ["format", "exact"]


def test_sets_can_be_changed_added_and_resolved(document: dict[str, Any]) -> None:
    document["eval"] = {"sets": SETS}
    changes = ["eval.sets.easy.tasks=3", "eval.sets.hard.dataset.digits=6", "eval.sets.new.dataset=generated"]
    config = load_run(None, changes, document)
    assert [held_out.name for held_out in config.eval_sets] == ["easy", "hard", "new"]
    assert (config.eval_sets[0].settings.tasks, config.eval_sets[1].dataset.config.digits) == (3, 6)
    again = load_run(None, base=config.resolved())
    assert again.resolved() == config.resolved()
    assert [held_out.settings for held_out in again.eval_sets] == [held_out.settings for held_out in config.eval_sets]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("eval.dataset=generated", "eval.dataset: stands beside `eval.sets`, and an evaluation has one set or several"),
        ("eval.sets.easy.dataset=null", "eval.sets.easy.dataset.name: missing; known here: generated, jsonl,"),
        ("eval.sets.easy.dataset.digit=3", "eval.sets.easy.dataset.digit: unknown key (value 3); did you mean "
         "'digits'?"),
        ("eval.sets.easy.sampling.stopp=3", "eval.sets.easy.sampling.stopp: unknown key (value 3); did you mean "
         "'stop'?"),
        ("eval.sets.easy.every=3", "eval.sets.easy.every: unknown key (value 3); did you mean"),
        ("eval.sets.easy.sampling.temperature=0", "eval.sets.easy.samples_per_task: 4 equal samples: "
         "`eval.sets.easy.sampling.temperature` is 0, which is greedy"),
        ("eval.sets.easy=generated", 'eval.sets.easy: "generated" is not a mapping'),
        ("eval.sets=easy", 'eval.sets: "easy" is not a mapping'),
        ("eval.sets={}", "eval.dataset.name: missing"),
        ("eval.sets={a/b: {dataset: generated}}", "eval.sets: 'a/b' cannot name a set; letters, digits,"),
    ],
)  # fmt: skip
def test_wrong_sets_are_told_in_plain_words(document: dict[str, Any], override: str, line: str) -> None:
    document["eval"] = {"sets": SETS}
    found = refusal(document, [override])
    assert found.startswith(f"command line: {line}"), found
    assert "\n" not in found


def test_a_warmup_without_a_length_is_refused_and_can_be_switched_off(document: dict[str, Any]) -> None:
    del document["warmup"]["updates"]
    assert refusal(document) == "command line: warmup.updates: missing; without it there is no warm-up"
    config = load_run(None, ["warmup.updates=0"], document)
    assert config.warmup_algorithm is None


def test_file_errors_name_the_file_and_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "grpo_digits.yaml").write_text("updates: 1\n")
    with pytest.raises(ConfigError, match=r"grpo_digit.yaml: no such file; did you mean '.*grpo_digits.yaml'\?"):
        load_run(tmp_path / "grpo_digit.yaml")


def test_a_run_is_a_file_or_a_base() -> None:
    for path, base in ((None, None), (Path("x.yaml"), {"updates": 1})):
        with pytest.raises(ConfigError, match="either a configuration file or"):
            load_run(path, base=base)


def test_the_base_is_not_changed(document: dict[str, Any]) -> None:
    before = repr(document)
    load_run(None, ["trainer.learning_rate=1", "sinks.0.every=3"], document)
    assert repr(document) == before


def test_misspelt_environment_variables_are_told(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAX_PLUGIN_DISABLE", "relax-x")
    load_run(None, base=document)
    assert capsys.readouterr().err == (
        "warning: the environment variable RELAX_PLUGIN_DISABLE does nothing; did you mean 'RELAX_PLUGINS_DISABLE'?\n"
    )
