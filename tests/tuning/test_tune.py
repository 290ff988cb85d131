"""The search on targets whose best strategy is known, with real processes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked_children import forked

from torchproof.records import Run, SearchState, UserError
from torchproof.strategies import recipe
from torchproof.targets.options import Options
from torchproof.tuning.objectives import Objective
from torchproof.tuning.tuner import TuneOptions, tune

PLANTED = Path(__file__).parent / "planted.py"
PLAIN = Options(compile={"backend": "eager"}, quiet=True)
QUICK = TuneOptions(effort="quick", names=("full", "regional"), budget_s=300)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tuned(factory: str, asked: TuneOptions = QUICK, **more: Any) -> Run:
    options = more.pop("options", PLAIN)
    with forked():
        return tune(f"{PLANTED}:{factory}", options, tune_options=asked, **more)


def outcomes(run: Run) -> dict[str, str]:
    assert run.tuning is not None
    return {trial.name: trial.outcome for trial in run.tuning.trials}


SERVICE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, torchproof, planted

model, [call] = planted.make()
expected = model(*call)
model = torchproof.compile(model, recipe="torchproof.toml")
answers = [model(*call) for _ in range(3)]
status = torchproof.status(model)
torch.testing.assert_close(answers, [expected] * 3)
print(status.strategy, status.compiled_calls, len(status.fallbacks))
"""


@pytest.mark.slow
def test_the_planted_best_strategy_is_found_and_holds_in_a_fresh_process() -> None:
    run = tuned("make", recipe_file="torchproof.toml")
    assert run.tuning is not None and run.verb == "tune"
    assert outcomes(run) == dict.fromkeys(("eager", "full", "regional"), "measured")
    assert run.tuning.chosen == "regional"
    found = recipe.load("torchproof.toml")
    assert found.strategy.name == "regional" and found.run == run.id
    assert found.gain["low"] > 1 and found.numerics["verdict"] in ("same", "rounding")
    assert [site.paths for site in found.plan.regions] == [
        ("blocks.0", "blocks.1", "blocks.2", "blocks.3")
    ]
    assert [row.strategy for row in run.measurements] == ["eager", "regional"]
    command = [sys.executable, "-c", SERVICE, str(PLANTED.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == ["regional", "3", "0"], done.stderr


@pytest.mark.slow
def test_a_hanging_a_crashing_and_a_wrong_arm_are_passed_over() -> None:
    names = ("core:hangs", "core:crashes", "core:errs", "regional")
    options = replace(PLAIN, timeout_s=10.0)
    run = tuned("make_hostile", replace(QUICK, names=names), options=options)
    assert outcomes(run) == {
        "eager": "measured",
        "core:hangs": "timed out",
        "core:crashes": "failed",
        "core:errs": "wrong",
        "regional": "measured",
    }
    assert run.tuning is not None and run.tuning.chosen == "regional"
    whys = {t.name: t.why for t in run.tuning.trials}
    assert "SIGSEGV" in whys["core:crashes"] and "10 s" in whys["core:hangs"]


def test_where_nothing_gains_the_recipe_is_eager() -> None:
    asked = replace(QUICK, names=("full",))
    run = tuned("make_idle", asked, recipe_file="torchproof.toml")
    assert run.tuning is not None and run.tuning.chosen == "eager"
    assert recipe.load("torchproof.toml").strategy.name == "eager"


class Impatient:
    """Presses Ctrl-C once so many trials have ended."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, text: str) -> None: ...

    def show(self, state: SearchState) -> None:
        if len(state.trials) > self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_search_is_saved_and_goes_on() -> None:
    first = tuned("make", watcher=Impatient(1), recipe_file="torchproof.toml")
    assert first.ending == "interrupted" and first.tuning is not None
    assert first.tuning.chosen is None and not Path("torchproof.toml").exists()
    [earlier] = [t.name for t in first.tuning.trials if t.name != "eager"]
    run = tuned("make", replace(QUICK, resume=True))
    assert run.tuning is not None and run.tuning.chosen == "regional"
    resumed = [t.name for t in run.tuning.trials if t.resumed]
    assert resumed == [earlier] and run.tuning.resumed == 1


@pytest.mark.slow
def test_trials_of_other_code_do_not_count(tmp_path: Path) -> None:
    own = tmp_path / "model.py"
    own.write_text(PLANTED.read_text())
    asked = replace(QUICK, names=("regional",))

    def search(resume: bool) -> list[bool]:
        with forked():
            run = tune(f"{own}:make", PLAIN, tune_options=replace(asked, resume=resume))
        assert run.tuning is not None
        return [t.resumed for t in run.tuning.trials if t.name != "eager"]

    assert search(False) == [False]
    own.write_text(PLANTED.read_text().replace("x + self.linear(x)", "x * 1.0 + 1"))
    assert search(True) == [False]


def test_a_budget_for_no_trial_at_all_is_said_to_be_too_small() -> None:
    with pytest.raises(UserError, match=r"--budget \ds "):
        tuned("make_hostile", replace(QUICK, budget_s=3, names=("core:hangs",)))


@pytest.mark.parametrize(
    ("target", "told"),
    [(str(PLANTED), r"planted\.py\b.*\bscript\b")],
)
def test_what_cannot_be_made_anew_is_refused(target: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        tune(target, PLAIN)


def test_a_recipe_that_is_there_stays(tmp_path: Path) -> None:
    Path("torchproof.toml").write_text("mine")
    with pytest.raises(UserError, match=r"torchproof\.toml\b.*--overwrite"):
        tune(
            f"{PLANTED}:make", PLAIN, tune_options=QUICK, recipe_file="torchproof.toml"
        )
    assert Path("torchproof.toml").read_text() == "mine"


@pytest.mark.slow
def test_few_steps_are_best_run_eager() -> None:
    few = tuned("make", replace(QUICK, objective=Objective.parse("steps:2")))
    assert few.tuning is not None and few.tuning.chosen == "eager"
    assert all(t.cold for t in few.tuning.trials)
