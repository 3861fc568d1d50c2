"""What a person does on the page: pointing, clicking, typing. A script in a copy of the page does it instead."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.conftest import ATTACK, Elements, Show

HELPERS = """
const pointer = (type, place) => new PointerEvent(type, {bubbles: true, ...place});
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2};
};
const enter = (id, value) => {
  byId(id).value = value;
  byId(id).dispatchEvent(new Event("input"));
};
"""


Acting = Callable[..., Elements]


@pytest.fixture
def acting(show: Show, page: Path, tmp_path: Path) -> Acting:
    """``acting(script, choices)``: the page after a script has acted on it, its address in the body's data-address."""
    numbers = itertools.count()

    def act(script: str, choices: str = "") -> Elements:
        copy = tmp_path / f"page-{next(numbers)}.html"
        acts = f"<script>{{ {HELPERS} {script} document.body.dataset.address = location.hash; }}</script></body>"
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", acts), encoding="utf-8")
        return show(choices, path=copy)

    return act


def test_a_chart_is_read_and_an_update_chosen_by_pointing_and_clicking(acting: Acting) -> None:
    chart = 'const chart = document.querySelector("[data-panel=Loss] svg");'
    pointed = acting(f'{chart} chart.dispatchEvent(pointer("pointermove", middle(chart)));')
    assert pointed.one("output", id="chosen-update").text == "3"
    assert pointed.one("b", within="panels", data_metric="rollout/reward").text == "0.3"
    assert pointed.one("body").attributes["data-address"] == "", "pointing chooses nothing"
    left = acting(f'{chart} for (const type of ["pointermove", "pointerleave"]) chart.dispatchEvent(pointer(type));')
    assert left.one("output", id="chosen-update").text == "6"
    clicked = acting(
        f'{chart} chart.dispatchEvent(pointer("click", middle(chart)));'
        'chart.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));'
    )
    assert "update=2" in clicked.one("body").attributes["data-address"]
    assert clicked.one("svg", within="gantt").attributes["aria-label"] == "Timeline of updates 2 to 5"


def test_the_timeline_moves_by_its_buttons(acting: Acting) -> None:
    shown = acting(
        'byId("next").click(); byId("next").click(); byId("previous").click(); enter("window", "1");', "update=2"
    )
    assert shown.one("svg", within="gantt").attributes["aria-label"] == "Timeline of updates 3 to 3"
    shown = acting('byId("next").click();', "update=6")
    assert "6 to 6" in shown.one("svg", within="gantt").attributes["aria-label"]


def test_a_span_and_a_token_tell_their_facts(acting: Acting) -> None:
    shown = acting(
        'const bar = document.querySelector("[data-name=generate]"); bar.dispatchEvent(pointer("pointermove"));'
    )
    told = [line.text for line in shown.find("div", within="hint")]
    assert (told[0], told[-2:]) == ("rollout: generate", ["group: 9", "tokens: 100"])
    token = 'const token = document.querySelector("[aria-label=response] [data-index=\\"3\\"]");'
    shown = acting(f'{token} token.dispatchEvent(pointer("pointermove"));', "batch=1")
    assert [line.text for line in shown.find("div", within="hint")] == [
        'token 3: "2", id 50',
        "rollout log-probability: -0.53",
        "trainer log-probability: -0.655",
        "advantages: 1",
        "trainer \N{MINUS SIGN} rollout: -0.125",
        "version: 2",
    ]


def test_any_metric_can_be_put_on_the_page_and_taken_away(acting: Acting) -> None:
    choose = """
      byId("all-metrics").open = true;
      const box = (title) => document.querySelector(`[data-title="${title}"] input`);
      box("train/skipped").click();
      box("rollout: reward/exact").click();
    """
    shown = acting(choose)
    assert [figure.attributes["data-panel"] for figure in shown.find("figure", within="more-panels")] == [
        "train/skipped",
        "rollout: reward/exact",
    ]
    assert shown.one("b", within="more-panels", data_metric="reward/exact").text == "0.5"
    assert not acting(f'{choose} box("train/skipped").click(); box("rollout: reward/exact").click();').find(
        "figure", within="more-panels"
    )


def test_typing_finds_answers_and_metrics(acting: Acting) -> None:
    shown = acting(f'enter("batch", "2"); enter("search", {"onerror"!r}); enter("metric-search", "loss");')
    assert [pre.text for pre in shown.find("pre", aria_label="response")] == [f"{ATTACK}<|im_end|>"]
    choices = shown.find("label", within="metric-choices")
    assert [choice.text for choice in choices if "hidden" not in choice.attributes] == [" train/loss"]
    assert "search=onerror" in shown.one("body").attributes["data-address"]
