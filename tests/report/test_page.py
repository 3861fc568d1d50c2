"""The page in a browser without a network: charts, timeline and samples with the right numbers."""

import json
import re
import shutil
from pathlib import Path

from relax_core.report import write_report
from relax_core.report.page import report_data
from tests.report.conftest import ANSWERS, ATTACK, CONFIG, ORIGIN, Elements, Show, write_lines


def read_out(shown: Elements) -> dict[str, str]:
    """Value of each metric that the charts show."""
    return {value.attributes["data-metric"]: value.text for value in shown.find("b", within="panels")}


def rows(shown: Elements) -> list[int]:
    return [int(row.attributes["data-row"]) for row in shown.find("article")]


def responses(shown: Elements) -> list[str]:
    return [pre.text for pre in shown.find("pre", aria_label="response")]


def test_nothing_is_fetched(page: Path) -> None:
    text = re.sub(r'"data">.*?</script>', "", page.read_text(encoding="utf-8"))
    assert "default-src 'none'" in text
    assert re.findall(r"https?://|@import|(?:src|href)\s*=\s*[\"']?(?!#)[\w/]", text) == []


def test_the_first_lines_say_what_was_run_and_what_came_out(show: Show) -> None:
    shown = show()
    assert shown.one("h1").text == "a-run"
    facts = dict(zip([e.text for e in shown.find("dt")], [e.text for e in shown.find("dd")], strict=True))
    assert facts["status"] == "completed"
    assert (facts["algorithm"], facts["mode"], facts["seed"]) == ("grpo", "fully_async", "7")
    assert (facts["duration"], facts["updates"]) == ("3 min 07 s", "6")
    assert (facts["held-out reward easy"], facts["held-out reward hard"]) == ("0.000 → 0.600", "0.000 → 0.300")


def test_a_resumed_run_is_not_told_by_the_summary_of_its_former_sitting(run: Path, tmp_path: Path) -> None:
    resumed = shutil.copytree(run, tmp_path / "resumed")
    former = {"status": "completed", "updates": 3, "wall_s": 3.6, "ended": ORIGIN - 9}
    (resumed / "summary.json").write_text(json.dumps(former))
    facts = dict(report_data(resumed)["overview"])
    assert facts["status"].endswith("still going, or killed")
    assert (facts["updates"], facts["duration"]) == ("6", "6.2 s")


def test_charts_stand_in_their_order_and_of_a_repeated_step_the_last_counts(show: Show) -> None:
    shown = show("update=3")
    titles = [figure.attributes["data-panel"] for figure in shown.find("figure", within="panels")]
    assert titles == ["Reward", "Evaluation", "Gradient norm", "Lag", "Loss"]
    values = read_out(shown)
    assert (values["rollout/reward"], values["eval/easy/reward"], values["eval/hard/reward"]) == ("0.3", "0.3", "0.15")
    assert (values["rollout/lag"], values["rollout/lag_max"], values["train/loss"]) == ("0.5", "1", "-0.03")
    (line,) = [
        path for path in shown.find("path", within="panels") if path.attributes["data-metric"] == "rollout/reward"
    ]
    assert len(re.findall(r"[ML]", line.attributes["d"])) == 6
    label = line.parents[-1].attributes["aria-label"]
    assert label == "Reward: rollout/reward from 0.1 at 1 to 0.6 at 6"


def test_an_evaluation_shows_its_newest_number_and_when_it_was(show: Show) -> None:
    shown = show("update=5")
    assert read_out(shown)["eval/easy/reward"] == "0.3"
    (panel,) = shown.find("figure", data_panel="Evaluation")
    assert "easy/reward 0.3 at 3" in panel.text


def test_every_metric_can_be_picked(show: Show) -> None:
    choices = {choice.attributes["data-title"] for choice in show().find("label", within="metric-choices")}
    assert {"rollout/reward", "train/skipped", "eval: eval/easy/reward", "rollout: reward/exact"} <= choices


def test_the_timeline_shows_the_chosen_updates(show: Show) -> None:
    shown = show("update=3&window=2")
    assert shown.one("svg", within="gantt").attributes["aria-label"] == "Timeline of updates 3 to 4"
    borders = [line.attributes["data-update"] for line in shown.find("line", within="gantt", class_="border")]
    assert borders == ["3", "4"]
    actor = [bar for bar in shown.find("rect", within="gantt", data_name="update")]
    assert [bar.attributes["data-update"] for bar in actor] == ["2", "3"]
    assert actor[0].parents[-1].attributes["data-lane"] == "actor"
    lanes = {bar.attributes["y"] for bar in shown.find("rect", within="gantt", data_name="generate")}
    assert len(lanes) == 2


def test_the_table_says_how_much_rollout_and_actor_worked_at_once(show: Show) -> None:
    cells = [cell.text for cell in show().find("", within="overlap") if cell.tag in ("th", "td")]
    assert dict(zip(cells[::2], cells[1::2], strict=True)) == {
        "Time in which any role worked": "6.25 s",
        "Rollout worked": "100.0 %",
        "Actor worked": "48.0 %",
        "Actor trained": "48.0 %",
        "Actor published": "0.0 %",
        "Rollout and actor worked at once": "48.0 %",
        "Actor waited": "52.0 %",
        "Actor waited for rows": "48.0 %",
        "Generation that nothing hid": "48.0 %",
        "Evaluation and checkpoints": "0.0 %",
        "Bound: the longer of rollout and actor": "100.0 %",
        "Tokens generated while updates ran (estimate)": "600 of 1200",
    }


def test_answers_are_shown_token_by_token_as_text(show: Show) -> None:
    shown = show("batch=1")
    assert rows(shown) == [4, 5, 6, 7]
    assert responses(shown) == [
        "42<|im_end|>",
        "<b>x</b><|im_end|>",
        "caf\\xc3\\xa9<|im_end|>",
        f"{ATTACK}<|im_end|>",
    ]
    assert [pre.text for pre in shown.find("pre", aria_label="prompt")] == ["1=", "1=", "1?", "1?"]
    assert not shown.find("img")
    assert ATTACK in shown.one("table", within="events").text


def test_evaluations_of_checkpoints_are_on_record(show: Show) -> None:
    cells = [cell.text for cell in show().find("td", within="evaluations")]
    assert cells[1:4] == ["update 6", "easy", "0.75 on 4 tasks"]
    assert cells[5:] == ["update 6", "hard", ATTACK]


def test_a_row_says_how_it_ended_and_what_its_reward_is_made_of(show: Show) -> None:
    first, *_, last = show("batch=1").find("article")
    assert first.text.startswith("reward 1group 2row 4stop stoplag 1update ")
    assert "label 42exact 0.25" in first.text
    assert last.text.startswith("no reward")
    assert "stop length" in last.text


def test_rows_are_found_by_reward_stop_reason_and_text(show: Show) -> None:
    assert rows(show("batch=0&reward=positive")) == [0]
    assert rows(show("batch=0&reward=negative")) == [2]
    assert rows(show("batch=0&reward=none")) == [3]
    assert rows(show("batch=0&stop=length")) == [3]
    assert rows(show("batch=2&search=X%3C")) == [9]
    assert "0 of 4 rows" in show("batch=2&search=nowhere").one("p", id="matches").text


def backgrounds(shown: Elements) -> list[list[str]]:
    """Background of each token of each response."""
    return [
        [
            token.attributes.get("style", "").removeprefix("background:")
            for token in shown.find("span", class_="token")
            if token.parents[-1] is response
        ]
        for response in shown.find("pre", aria_label="response")
    ]


def test_tokens_are_coloured_by_what_is_chosen(show: Show) -> None:
    by_advantage = backgrounds(show("batch=1&color=advantage"))
    assert by_advantage[0] == ["rgb(var(--high) / 0.750)"] * 3
    assert by_advantage[1] == ["rgb(var(--low) / 0.750)"] * (len(ANSWERS[1]) + 1)
    assert by_advantage[2][0] == "rgb(var(--high) / 0.375)"
    gaps = backgrounds(show("batch=1&color=gap"))
    assert set(gaps[0]) == {"rgb(var(--low) / 0.750)"}
    by_version = backgrounds(show("batch=1&color=version"))
    assert len(set(by_version[1])) == 2
    shown = show("batch=1&color=mask")
    prompt = shown.find("pre", aria_label="prompt")[0]
    assert all(
        "style" not in token.attributes for token in shown.find("span", class_="token") if token.parents[-1] is prompt
    )
    assert set(backgrounds(shown)[0]) == {"rgb(var(--chosen) / 0.3)"}


def begun(folder: Path, *lines: dict) -> Path:
    """The folder of a run that has just begun."""
    (folder / "config.yaml").write_text(CONFIG)
    write_lines(folder / "metrics.jsonl", lines)
    return folder


def test_tokens_that_the_run_counted_are_told(run: Path, tmp_path: Path) -> None:
    assert report_data(run)["overlap"]["tokens_counted"] is None
    lines = [{"stream": "train", "step": step, "time": 0.0, "perf/tokens_during_update": 50.0} for step in (1, 2, 2)]
    assert report_data(begun(tmp_path, *lines))["overlap"]["tokens_counted"] == 100.0


def test_a_run_that_has_just_begun_has_a_page(show: Show, tmp_path: Path) -> None:
    write_report(begun(tmp_path), tmp_path / "report.html")
    shown = show("update=4&color=gap&batch=7", path=tmp_path / "report.html")
    notes = {note.attributes["id"]: note.text for note in shown.find("p", class_="note")}
    assert notes["charts-note"] == "No metrics yet."
    assert "no timeline" in notes["timeline-note"]
    assert "no batches" in notes["samples-note"]


def test_an_old_link_shows_what_there_is(show: Show) -> None:
    shown = show("update=x&color=none&batch=7&window=3&stop=never")
    assert rows(shown) == [0, 1, 2, 3]
    assert shown.one("svg", within="gantt").attributes["aria-label"] == "Timeline of updates 6 to 6"
