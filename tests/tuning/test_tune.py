"""The search on targets whose best strategy is known, with real processes."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_runs
import pytest
from fake_executor import EAGER, Fake, Fate
from forked_commands import forked

from torchproof.records import Run, SearchState, Trial, UserError
from torchproof.records.objective import Objective
from torchproof.records.options import Options
from torchproof.strategies import recipe
from torchproof.tuning import tuner
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.executors import ExecutorLost
from torchproof.tuning.tuner import TuneOptions, tune

PLANTED = Path(__file__).parent / "planted.py"
PLAIN = Options(compile={"backend": "eager"}, quiet=True)
QUICK = TuneOptions(effort="quick", names=("full", "regional"), budget_s=300)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tuned(factory: str, tune_options: TuneOptions = QUICK, **more: Any) -> Run:
    options = more.pop("options", PLAIN)
    with forked():
        return tune(f"{PLANTED}:{factory}", options, tune_options=tune_options, **more)


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


class Interrupting:
    """Presses Ctrl-C once so many trials have ended."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, text: str) -> None: ...

    def show(self, state: SearchState) -> None:
        if len(state.trials) > self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_interrupted_search_goes_on_and_its_recipe_holds_in_a_fresh_process() -> None:
    first = tuned("make", watcher=Interrupting(1), recipe_file="torchproof.toml")
    assert first.ending == "interrupted" and first.tuning is not None
    assert first.tuning.chosen is None and not Path("torchproof.toml").exists()
    [earlier] = [t.name for t in first.tuning.trials if t.name != "eager"]
    run = tuned("make", replace(QUICK, resume=True), recipe_file="torchproof.toml")
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert outcomes(run) == dict.fromkeys(("eager", "full", "regional"), "measured")
    assert [t.name for t in run.tuning.trials if t.resumed] == [earlier]
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
def test_hanging_crashing_and_wrong_strategies_do_not_win() -> None:
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


def test_recipe_is_eager_if_nothing_gains() -> None:
    tune_options = replace(QUICK, names=("full",))
    run = tuned("make_idle", tune_options, recipe_file="torchproof.toml")
    assert run.tuning is not None and run.tuning.chosen == "eager"
    assert outcomes(run) == {"eager": "measured", "full": "measured"}
    assert recipe.load("torchproof.toml").strategy.name == "eager"


def test_existing_recipe_is_not_replaced() -> None:
    Path("torchproof.toml").write_text("mine")
    with pytest.raises(UserError, match=r"torchproof\.toml\b.*--overwrite"):
        tune(
            f"{PLANTED}:make", PLAIN, tune_options=QUICK, recipe_file="torchproof.toml"
        )
    assert Path("torchproof.toml").read_text() == "mine"


# -- a repeated search, with simulated trials ------------------------------------------


class Machine(Fake):
    """Stands in for the executor; `on_submit` may end the search."""

    def __init__(self, on_submit: Callable[[Candidate], None]) -> None:
        super().__init__({"full": Fate(5.0), "regional": Fate(4.0)})
        self._on_submit = on_submit

    def probe(self, limit_s: float) -> Eager:
        environment = {**bench_runs.ENVIRONMENT, "device": "cpu"}
        return Eager(EAGER.trial("eager"), {"fingerprint": {"a": 1}}, environment)

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        self._on_submit(candidate)
        super().submit(candidate, limit_s)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Trial]]:
    """Runs a search of `own.py:make`; returns its trials."""

    def run(
        on_submit: Callable[[Candidate], None] = lambda candidate: None,
        options: Options = PLAIN,
        **changes: Any,
    ) -> dict[str, Trial]:
        machine = Machine(on_submit)
        monkeypatch.setattr(tuner, "Local", lambda task, watcher: machine)
        tune_options = replace(QUICK, **changes)
        run = tune("own.py:make", options, tune_options=tune_options)
        assert run.tuning is not None
        return {trial.name: trial for trial in run.tuning.trials}

    Path("own.py").write_text("def make():\n    return None, []\n")
    return run


def resumed(trials: dict[str, Trial]) -> list[str]:
    return [name for name, trial in trials.items() if trial.resumed]


def ends_at_regional(error: BaseException) -> Callable[[Candidate], None]:
    def submit(candidate: Candidate) -> None:
        if candidate.name == "regional":
            raise error

    return submit


def test_eager_that_outlasts_the_budget_is_an_error(
    search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(self: Machine, limit_s: float) -> Eager:
        raise UserError("no answer in time")

    monkeypatch.setattr(Machine, "probe", probe)
    with pytest.raises(UserError, match="no answer"):
        search()
    with pytest.raises(UserError, match="--budget 0s "):
        search(budget_s=0.0)


def test_search_without_resume_starts_from_scratch(search: Any) -> None:
    search()
    assert resumed(search()) == []
    assert resumed(search(resume=True)) == ["full", "regional"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ExecutorLost("lost")], ids=["Ctrl-C", "lost"]
)
def test_trials_of_an_interrupted_search_are_saved(
    search: Any, error: BaseException
) -> None:
    if isinstance(error, UserError):
        with pytest.raises(ExecutorLost):
            search(ends_at_regional(error))
    else:
        assert list(search(ends_at_regional(error))) == ["eager", "full"]
    trials = search(resume=True)
    assert resumed(trials) == ["full"] and list(trials) == ["eager", "full", "regional"]


@pytest.mark.parametrize("change", ["code", "options", "cold", "damage", "ranks"])
def test_trials_of_another_search_are_not_reused(search: Any, change: str) -> None:
    search()
    more: dict[str, Any] = {}
    if change == "code":
        Path("own.py").write_text("def make():\n    return 1, []\n")
    elif change == "options":
        more["options"] = replace(PLAIN, train=True)
    elif change == "cold":
        more["objective"] = Objective.parse("first")
    elif change == "ranks":
        more["ranks"] = 2
    else:
        [saved] = Path(".torchproof/runs").glob("*/run.json")
        saved.write_text(saved.read_text()[:-20])
    assert resumed(search(resume=True, **more)) == []
