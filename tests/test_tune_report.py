"""A tune run as a reader sees it: text, Markdown and what must stay valid."""

from __future__ import annotations

import ast
import copy
import json
from typing import Any

import pytest
import tune_runs
from facts import missing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchproof.records import Mismatch, Run, Trial, Tuning
from torchproof.report import formats, numbers, render, search_words
from torchproof.report.log import observation
from torchproof.report.search_words import search_of
from torchproof.strategies import strategy
from torchproof.strategies.recipe import Recipe


def text(run: Run, **settings: Any) -> str:
    return render(run, "text", **settings)


def test_a_tune_run() -> None:
    shown = text(tune_runs.tune()).rstrip("\n")
    found = [block.split("\n") for block in shown.split("\n\n")]
    head, finals, others, unranked, untried, decided, source, file, applied, end = found
    told = " ".join(head)
    assert missing(told, "tune", "model.py:make", "cpu", "2.13.0+cpu", "2 thr") == []
    assert missing(told, "effort normal", "6 min 52 s", "10 min") == []
    assert missing(told, "11 trials", ", 1 ", tune_runs.TUNING["stopped"]) == []
    bound = f"Launch-bound: {tune_runs.PROBE['bound_why']}"
    assert missing(told, bound, "12 of Block") == []
    assert finals[2:5] == [
        "> regional+graph  1.20 ms  2.58x (2.45-2.71)    4.10 s  512 MiB  same",
        "  full            1.93 ms  1.61x (1.53-1.69)    12.1 s  512 MiB  same",
        "  eager           3.10 ms  reference           20.0 ms  512 MiB  same",
    ]
    assert others[2:6] == [
        "  full, coordinate_descent_tuning=True",
        "                         1.90 ms  1.63x (1.55-1.71)  2.20 s *  512 MiB  same",
        "  regional               2.00 ms  1.55x (1.47-1.63)    3.30 s  512 MiB  same",
        "  full:reduce-overhead   2.40 ms  1.29x (1.23-1.36)    15.0 s  512 MiB  same",
    ]
    assert others[6].strip() == search_words.WARM
    for line, each in zip(unranked[1:], tune_runs.TRIALS[6:10], strict=True):
        assert line.split()[0] == each["name"]
        why = str(each["why"] or "").rstrip(".")
        assert missing(line, each["outcome"], why) == []
    reasons = [line.strip().split(": ") for line in untried[1:]]
    assert reasons == [
        ["full+graph, full:max-autotune+graph", tune_runs.SKIPPED[2]["why"]],
        ["full:dynamic, regional:dynamic", tune_runs.SKIPPED[0]["why"]],
    ]
    assert missing(decided[0], "Decision", "regional+graph", "2.58x") == []
    assert [line.strip() for line in source] == tune_runs.SOURCE.split("\n")
    assert "torchproof.toml" in file[0]
    assert applied[0].strip() == search_words.applied(search_of(tune_runs.tune()))
    assert "20260102-0304-model" in end[0]


def test_total_time_is_a_column_where_it_is_the_objective() -> None:
    plain = copy.deepcopy(tune_runs.TUNING["trials"])
    for each in plain:
        if each["step_ms"]:
            each["value"] = each["first_call_s"] + each["step_ms"] * 0.499
    shown = text(tune_runs.tune(objective="steps:500", trials=plain))
    [summary, table, *_] = shown.split("\n\n")
    assert "500 steps" in summary
    [head, first] = table.split("\n")[1:3]
    assert "500 steps" in head
    assert first.split()[:4] == ["eager", "3.10", "ms", "1.57"]  # it is ordered by it
    assert "500 steps" not in text(tune_runs.tune())


@pytest.mark.parametrize("width", [40, 60, 79])
def test_a_narrow_terminal_gets_no_longer_lines(width: int) -> None:
    shown = text(tune_runs.tune(), width=width)
    code = ('    model = torchproof.compile(model, recipe="torchproof.toml")',)
    wide = [x for x in shown.splitlines() if len(x) > width and x not in code]
    assert wide == []
    assert "regional+graph" in shown and "1.20 ms" in shown


def test_utilisation_is_a_column_where_it_is_known() -> None:
    assert "MFU" not in search_words.columns(Tuning(trials=()))
    known = Trial("full", mfu=0.41, mfu_at_least=True)
    search = Tuning(trials=(Trial("eager"), known))
    assert search_words.columns(search)[-1] == "MFU"
    assert search_words.cells(known, search)[-1] == ">41%"
    assert search_words.cells(search.trials[0], search)[-1] == "-"


def test_a_search_that_was_ended_early() -> None:
    found = Run("id", "model.py:make", "-", {}, {}, verb="tune", ending="interrupted")
    shown = text(found)
    assert "(interrupted)" in shown
    assert "recipe" not in shown and "0 trials" in shown
    assert search_words.decision(search_of(found)) in shown
    for format in formats.FORMATS:
        assert render(found, format)
    stopped = tune_runs.tune(
        {"ending": "interrupted"}, stopped="interrupted", chosen=None
    )
    for format in ("text", "md"):
        again = "torchproof tune model.py:make --resume"
        assert again in render(stopped, format)
        assert again not in render(tune_runs.tune(), format)
    assert text(stopped, width=110).split("\n\n")[0].count("interrupted") == 2


def test_a_switch_is_found_among_the_finals_by_its_name() -> None:
    row = tune_runs.row("full", 1.1, variant={"config": tune_runs.SWITCH[6:]})
    run = tune_runs.tune({"measurements": (row,)})
    assert list(search_words.finals(run)) == [tune_runs.SWITCH]


def test_what_eager_keeps_says_no_more_than_was_measured() -> None:
    run = tune_runs.tune(
        {"measurements": ()},
        chosen="eager",
        why="nothing beats eager by 1.05x",
        recipe=None,
        recipe_file=None,
        trials=[{"name": "eager", "outcome": "measured", "step_ms": 3.1}],
        skipped=[],
    )
    shown = text(run)
    [row] = [line.split() for line in shown.split("\n") if line.startswith("> ")]
    assert row == [">", "eager", "3.10", "ms", "reference", "-", "-", "-"]
    assert f"eager: {search_of(run).why}" in shown
    assert "torchproof.compile" not in shown
    blocks = len(text(tune_runs.tune(skipped=[])).split("\n\n"))
    assert len(shown.split("\n\n")) < blocks, "nothing was left out, so nothing is said"


def test_what_a_probe_found_is_told_and_nothing_else() -> None:
    told: dict[str, Any] = {
        "bound": None,
        "bound_why": "the profiler saw no kernels",
        "blocks": {},
    }
    told |= {"host_syncs": 3, "ops_per_call": 40.0}
    told["varying"] = [["tokens", [1]], ["argument 0", [0, 1]]]
    bound, waits, varies = search_words.probed(told)
    assert told["bound_why"] in bound and "-bound" not in bound
    assert missing(waits, "GPU", " 3 ") == []
    assert missing(varies, "1 of tokens", "0 and 1 of argument 0") == []
    assert list(search_words.probed({"host_syncs": 0, "varying": []})) == []


# -- other formats ---------------------------------------------------------------------


def test_markdown_has_all_of_it() -> None:
    shown = render(tune_runs.tune(), "md")
    assert f"regional+graph: {tune_runs.TUNING['why']}" in shown
    assert "```python\nfrom torchproof import regions\n" in shown
    assert 'torchproof.compile(model, recipe="torchproof.toml")' in shown
    for trial in tune_runs.TRIALS:
        assert trial["name"] in shown
    for each in tune_runs.SKIPPED:
        assert each["name"] in shown and each["why"] in shown
    row = "| regional+graph | 1.20 ms | 2.58x (2.45-2.71) | 4.10 s | 512 MiB | same |"
    assert row in shown
    assert "2.20 s \\*" in shown and search_words.WARM[2:] in shown
    assert "**Measured:** 2026-01-02 03:04:05" in shown
    assert "Where |" not in shown


def test_markdown_says_where_a_trial_ran() -> None:
    plain = [{**tune_runs.trial("full", 1.9), "where": "GPU 1"}]
    shown = render(tune_runs.tune(trials=plain), "md")
    assert "| Where |" in shown and "| GPU 1 |" in shown


def test_the_log_tells_what_was_chosen() -> None:
    told = observation.draft(tune_runs.tune(), "20260102-0304-model")
    assert missing(told.title, "tune", "model.py:make", "regional+graph") == []
    facts = ("`model.py:make`", "cpu", f"regional+graph: {tune_runs.TUNING['why']}")
    assert missing(told.sentence, *facts) == []


def test_any_path_of_a_recipe_can_be_pasted() -> None:
    odd = 'a "b" \\ \u00e9.toml'
    line = search_words.applied(search_of(tune_runs.tune(recipe_file=odd)))
    [call] = [n for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Call)]
    assert ast.literal_eval(call.keywords[0].value) == odd


@pytest.mark.parametrize(
    ("name", "train", "verb"),
    [
        ("full+graph", True, "graph"),
        ("full+graph", False, "compile"),
        ("full", True, "compile"),
    ],
)
def test_a_graph_of_a_training_step_is_applied_as_one(
    name: str, train: bool, verb: str
) -> None:
    found = Recipe(strategy.parse(name), train=train)
    run = tune_runs.tune(recipe=found.to_json())
    assert search_words.applied(search_of(run)).startswith(
        f"{'step' if verb == 'graph' else 'model'} = torchproof.{verb}(model, recipe="
    )


def test_formats_for_findings_stay_valid() -> None:
    run = tune_runs.tune()
    sarif = json.loads(render(run, "sarif"))
    assert sarif["runs"][0]["results"] == []
    summary = render(run, "github")
    assert summary.startswith("torchproof: ") and summary.count("\n") == 1
    facts = ("tune", "model.py:make", f"regional+graph: {tune_runs.TUNING['why']}")
    assert missing(summary, *facts) == []
    again = Run.from_json(json.loads(render(run, "json")))
    assert text(again) == text(run)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*tune_runs.TRIALS[0], "x"]), inner)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(st.sampled_from(list(tune_runs.TUNING)), JSON),
    st.dictionaries(st.sampled_from(list(tune_runs.TRIALS[0])), JSON),
)
def test_any_record_is_refused_or_can_be_shown(
    changed: dict[str, Any], trial: dict[str, Any]
) -> None:
    odd = {**tune_runs.TRIALS[2], **trial}
    plain = {"trials": [*tune_runs.TRIALS[:2], odd], **changed}
    try:
        run = tune_runs.tune(**plain)
    except Mismatch:
        return
    for format in formats.FORMATS:
        assert render(run, format).strip()


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "-"),
        (0.2, "0 s"),
        (59.6, "1 min"),
        (312.0, "5 min 12 s"),
        (3600.0, "1 h"),
        (3780.0, "1 h 3 min"),
    ],
)
def test_durations(seconds: float | None, told: str) -> None:
    assert numbers.duration(seconds) == told
