"""What a run on Ray Serve takes where its configuration selects nothing."""

import pytest

from relax_core.cli.launch import ON_A_CLUSTER, ON_ONE_HOST, _defaults


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        (None, None, ON_ONE_HOST),
        (None, "", ON_ONE_HOST),
        (None, "head:6379", ON_A_CLUSTER),
        ("local", "head:6379", ON_ONE_HOST),
        ("auto", None, ON_A_CLUSTER),
    ],
)
def test_a_cluster_of_its_own_is_one_host_and_one_that_is_joined_may_be_many(
    monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str | None, expected: dict[str, str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert _defaults(None, {}, "serve", option) == [f"{section}={name}" for section, name in expected.items()]


def test_what_is_selected_stays_and_local_runs_take_the_defaults_of_the_sections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    sections = [item.partition("=")[0] for item in _defaults(None, {"transport": "memory"}, "serve", None)]
    assert sections == ["weight_sync"]
    assert _defaults(None, {}, "local", None) == []
