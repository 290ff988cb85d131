"""Switches of the compiler: where they apply, when they win, what recipes keep."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked_commands
import pytest
import torch
from fake_executor import Fate, Setting
from forked_children import forked

from torchproof.measure import replays
from torchproof.measure.specs import Plan, StrategySpec
from torchproof.measure.worker_process import WorkerError
from torchproof.records import Run, Skip, Trial
from torchproof.strategies import parse, recipe
from torchproof.targets.options import Options
from torchproof.targets.target import parse as parse_target
from torchproof.torch_private import configs
from torchproof.tuning import bounds, outcome, space
from torchproof.tuning.candidate import Candidate
from torchproof.tuning.objectives import Objective
from torchproof.tuning.search import REPLAYS, Search
from torchproof.tuning.trial_worker import Worker
from torchproof.tuning.tuner import TuneOptions, tune

HERE = Path(__file__).parent
FULL = Candidate(StrategySpec(parse("full+graph")))
PDL = "full+graph, triton.enable_pdl=True"
GEMM = "full+graph, max_autotune_gemm=True"
NESTED = "full+graph, nested_graph_breaks=True"
PDL_AND_GEMM = "full+graph, max_autotune_gemm=True, triton.enable_pdl=True"


def setting(folder: Path, fates: dict[str, Fate], **more: Any) -> Setting:
    return Setting(folder, fates, device="cuda", **more)


def skipped(search: Search) -> dict[str, str]:
    return {skip.name: skip.why for skip in search.skipped}


def trial_of(name: str, **values: Any) -> Trial:
    return Trial(name, step_ms=1.0, numerics={"verdict": "same"}, **values)


# -- where a switch applies ------------------------------------------------------------


def tried_on(
    base: Candidate, device: str = "cuda", *, breaks: int = 0, **unavailable: str
) -> tuple[list[str], list[Skip]]:
    facts = {"counts": {"graphs": 1, "graph_breaks": breaks}}
    probe = {"unavailable": unavailable}
    found = space.switched(base, trial_of(base.name, facts=facts), probe, device)
    return [str(each.switches[0]) for each in found.candidates], found.skipped


def test_nested_breaks_are_tried_where_there_are_breaks_and_nowhere_else() -> None:
    assert "nested_graph_breaks=True" in tried_on(FULL, breaks=2)[0]
    tried, left_out = tried_on(FULL)
    assert "nested_graph_breaks=True" not in tried
    assert left_out == [Skip(NESTED, "no graph break was observed in full+graph")]


def test_what_the_probe_says_is_unavailable_is_not_tried() -> None:
    why = {"inductor.triton.enable_pdl": "this GPU is too old"}
    tried, left_out = tried_on(FULL, breaks=1, **why)
    assert "triton.enable_pdl=True" not in tried
    assert left_out == [Skip(PDL, "this GPU is too old")]


@pytest.mark.parametrize("frozen", [False, True])
def test_on_a_cpu_products_are_tuned_only_with_frozen_weights(frozen: bool) -> None:
    config = importlib.import_module("torch._inductor.config")
    with config.patch(freezing=frozen):
        why = configs.why_unavailable("inductor.max_autotune_gemm", "cpu")
        assert why is None if frozen else "frozen weights" in (why or "")
        assert configs.why_unavailable("inductor.max_autotune_gemm", "cuda") is None


def test_what_a_mode_has_on_is_not_tried_again() -> None:
    tuned = Candidate(StrategySpec(parse("full:max-autotune-no-cudagraphs")))
    assert "max_autotune_gemm=True" not in tried_on(tuned)[0]


def test_settings_of_inductor_are_not_for_other_backends() -> None:
    eager = replace(parse("full"), arguments={"backend": "eager"})
    tried, left_out = tried_on(Candidate(StrategySpec(eager)), "cpu", breaks=1)
    assert tried == ["nested_graph_breaks=True"]
    assert {skip.why for skip in left_out} == {
        "it is a setting of Inductor, and the backend is eager"
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("inductor.triton.enable_pdl", "needs a CUDA device"),
        ("inductor.cpp_wrapper", None),
        ("dynamo.nested_graph_breaks", None),
        ("dynamo.no_such_setting", "has no setting no_such_setting"),
    ],
)
def test_the_installed_torch_is_asked_for_its_settings(
    name: str, told: str | None
) -> None:
    why = configs.why_unavailable(name, "cpu")
    assert why is None if told is None else told in (why or "")


@pytest.mark.parametrize(("capability", "told"), [((8, 6), "has 8.6"), ((9, 0), None)])
def test_dependent_launches_need_a_recent_gpu(
    capability: tuple[int, int], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    why = configs.why_unavailable("inductor.triton.enable_pdl", "cuda")
    assert why is None if told is None else told in (why or "")


# -- what earlier trials rule out ------------------------------------------------------


def ruled_out(switch: str, base: Trial, **probe: Any) -> str | None:
    found = space.switched(FULL, base, {}, "cuda").candidates
    [candidate] = [each for each in found if str(each.switches[0]) == switch]
    evidence = bounds.Evidence(Objective(), probe, {base.name: base}, base)
    return bounds.cannot_win(candidate, evidence)


def test_kernels_without_gaps_have_nothing_to_overlap() -> None:
    busy = trial_of("full+graph", kernel_ms=0.99, generated_ms=0.05)
    idle = trial_of("full+graph", kernel_ms=0.90, generated_ms=0.05)
    of_libraries = trial_of("full+graph", kernel_ms=0.90, generated_ms=0.0)
    switch = "triton.enable_pdl=True"
    assert "can gain little" in (ruled_out(switch, busy) or "")
    assert ruled_out(switch, idle) is None
    assert "can gain little" in (ruled_out(switch, of_libraries) or "")


def test_few_products_are_not_worth_tuning() -> None:
    base = trial_of("full+graph", kernel_ms=0.9, generated_ms=0.5)
    switch = "max_autotune_gemm=True"
    assert "only 5% of the time" in (ruled_out(switch, base, matmul_share=0.05) or "")
    assert ruled_out(switch, base, matmul_share=0.5) is None


def test_few_generated_kernels_do_not_rule_out_products() -> None:
    base = trial_of("full+graph", kernel_ms=0.9, generated_ms=0.01)
    assert ruled_out("max_autotune_gemm=True", base, matmul_share=0.5) is None
    assert ruled_out("combo_kernels=True", base, matmul_share=0.5) is not None


# -- replays ---------------------------------------------------------------------------


def test_dependent_launches_win_after_a_thousand_equal_replays(tmp_path: Path) -> None:
    fates = {"full+graph": Fate(2.0), PDL: Fate(1.8)}
    chosen, search, fake = setting(tmp_path, fates).run("full+graph")
    assert (chosen.name, chosen.replays) == (PDL, 1000)
    assert fake.replayed == [(PDL, "full+graph", REPLAYS)]
    tuning = outcome.tuning_of(search, chosen, "")
    assert "1,000 replays were bitwise equal" in (tuning.why or "")
    replayed = {t.name: t.to_json()["replays"] for t in tuning.trials}
    assert replayed[PDL] == 1000 and replayed["full+graph"] is None
    found = outcome.recipe_of(search, chosen, Run("", "", "", {}, {}), train=False)
    again = recipe.loads(found.dumps())
    assert again.strategy.arguments == {"options": {"triton.enable_pdl": True}}
    assert again.numerics["replays"] == 1000


def test_dependent_launches_that_differ_in_replay_700_do_not_win(
    tmp_path: Path,
) -> None:
    fates = {"full+graph": Fate(2.0), PDL: Fate(1.8, differs_at=700)}
    chosen, search, _ = setting(tmp_path, fates).run("full+graph")
    assert chosen.name == "full+graph" and chosen.replays is None
    rejected = search.trials[PDL]
    assert rejected.outcome == "wrong" and rejected.replays == 699
    assert rejected.why == (
        "replay 700 of 1,000 differs from full+graph in call 0: output"
    )


def test_a_winner_without_dependent_launches_is_not_replayed(tmp_path: Path) -> None:
    fates = {"full+graph": Fate(2.0), GEMM: Fate(1.8)}
    chosen, _, fake = setting(tmp_path, fates).run("full+graph")
    assert chosen.name == GEMM and not fake.replayed


def test_switches_together_are_compared_with_those_that_cannot_race(
    tmp_path: Path,
) -> None:
    fates = {"full+graph": Fate(2.0), GEMM: Fate(1.8), PDL: Fate(1.9)}
    fates[PDL_AND_GEMM] = Fate(1.6, differs_at=3)
    chosen, _, fake = setting(tmp_path, fates).run("full+graph")
    assert fake.replayed == [(PDL_AND_GEMM, GEMM, REPLAYS)]
    assert chosen.name == GEMM


def test_replays_that_do_not_fit_in_the_budget_prove_nothing(tmp_path: Path) -> None:
    slow = Fate(1.8, pass_ms=10_000.0)
    chosen, search, fake = setting(
        tmp_path, {"full+graph": Fate(2.0), PDL: slow}, budget_s=5000.0
    ).run("full+graph")
    assert chosen.name == "full+graph" and not fake.replayed
    assert "1,000 replays would take about 10000 s" in (search.trials[PDL].why or "")


@pytest.mark.parametrize("at", [None, 700])
def test_equal_passes_are_counted_up_to_the_first_other_bit(at: int | None) -> None:
    """Minus zero is equal to zero, and is another bit pattern; NaN is not."""
    runs = 0

    def run() -> dict[str, Any]:
        nonlocal runs
        runs += 1
        zero = -0.0 if runs == at else 0.0
        return {"output": torch.tensor([zero, float("nan")]), "label": float("nan")}

    expected = {"output": torch.tensor([0.0, float("nan")]), "label": float("nan")}
    found = replays.count_equal(run, expected, 1000)
    assert found == replays.Replayed(*((1000,) if at is None else (699, "output")))
    assert runs == (at or 1000)


UNSTEADY = """
import torch

passes = 0

@torch.library.custom_op("unsteady::add", mutates_args=())
def add(x: torch.Tensor) -> torch.Tensor:
    global passes
    passes += 1
    return x + ({when})

@add.register_fake
def _(x):
    return torch.empty_like(x)

class Model(torch.nn.Module):
    def forward(self, x):
        return add(x) if torch.compiler.is_compiling() else x + 0

def make():
    return Model(), [(torch.zeros(4),)]
"""


def replayed(folder: Path, base: str, other: str) -> replays.Replayed:
    """Replays a process whose passes may differ from those of another one."""
    targets = []
    for name, when in (("base", base), ("other", other)):
        (folder / f"{name}.py").write_text(UNSTEADY.format(when=when))
        targets.append(parse_target(f"{folder / name}.py:make"))
    plan = Plan(targets[0], (), quiet=True)
    plain = replace(parse("full"), arguments={"backend": "eager"})
    sound = Candidate(StrategySpec(plain))
    racing = Candidate(StrategySpec(plain, variant={"config": "racing"}))
    with forked():
        worker = Worker(plan, folder, caches=folder, shares_caches=True)
        try:
            worker.probe(300)
            worker._running(sound)
            worker.session.plan = replace(plan, target=targets[1])
            return worker.replay(racing, sound, 50, 300)
        finally:
            worker.close()


@pytest.mark.parametrize(
    ("other", "found"),
    [
        pytest.param("False", (50, None), marks=pytest.mark.slow),
        ("True", (0, "call 0: output")),
    ],
)
def test_replays_of_a_process_are_compared_with_those_of_another(
    other: str, found: tuple[int, str | None], tmp_path: Path
) -> None:
    assert replayed(tmp_path, "False", other) == replays.Replayed(*found)


def test_outputs_that_do_not_repeat_prove_nothing(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="does not repeat its own outputs"):
        replayed(tmp_path, "passes % 7 == 0", "False")


# -- a recipe --------------------------------------------------------------------------

SERVICE = """
import sys
sys.path.insert(0, {folder!r})
import torch, torchproof, broken

model, [call] = broken.make()
expected = model(*call)
model = torchproof.compile(model, recipe="torchproof.toml")
torch.testing.assert_close([model(*call) for _ in range(2)], [expected] * 2)
print(torchproof.status(model).strategy, torch._dynamo.config.nested_graph_breaks)
"""


def test_a_recipe_keeps_settings_of_dynamo_and_production_applies_them(
    tmp_path: Path,
) -> None:
    fates = {"full": Fate(2.0, graph_breaks=1)}
    fates["full, nested_graph_breaks=True"] = Fate(1.0)
    chosen, search, _ = Setting(tmp_path, fates).run("full")
    found = outcome.recipe_of(search, chosen, Run("", "", "", {}, {}), train=False)
    assert found.dynamo == {"nested_graph_breaks": True}
    assert recipe.loads(found.dumps()).dynamo == found.dynamo
    plain = replace(found.strategy, arguments={"backend": "eager"})  # compiles faster
    replace(found, strategy=plain).write(tmp_path / "torchproof.toml")
    done = forked_commands.python(SERVICE.format(folder=str(HERE)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["full", "True"]


@pytest.mark.slow
def test_nested_breaks_are_tried_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options(compile={"backend": "eager"}, quiet=True)
    asked = TuneOptions(names=("full",), budget_s=300)
    with forked():
        run = tune(f"{HERE}/broken.py:make", options, tune_options=asked)
    assert run.tuning is not None
    trials = {trial.name: trial for trial in run.tuning.trials}
    nested = trials["full, nested_graph_breaks=True"]
    assert nested.outcome == "measured"
    assert "torch._dynamo.config.nested_graph_breaks = True" in nested.source
    assert "nested" not in trials["full"].source
