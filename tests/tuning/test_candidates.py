"""Which candidates apply to a target, and what a recipe keeps of a switch."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked_commands
import pytest
import torch
from fake_executor import Fate, Setting
from forked_commands import forked

from torchproof.measure import Replayed, numerics
from torchproof.measure.specs import Plan, StrategySpec
from torchproof.measure.worker_process import WorkerError
from torchproof.records import Run
from torchproof.records.objective import Objective
from torchproof.strategies import parse, recipe
from torchproof.targets.target import parse as parse_target
from torchproof.torch_private import configs
from torchproof.tuning import candidates, outcome
from torchproof.tuning.candidates import Candidate
from torchproof.tuning.trial_worker import Worker

HERE = Path(__file__).parent
BLOCKS: dict[str, Any] = {"blocks": {"Block": 4}, "varying": [], "core": ["encode"]}
VARYING = {**BLOCKS, "varying": ["x"], "core": []}
NESTED_BREAKS = "full, nested_graph_breaks=True"
TUNED = "max-autotune-no-cudagraphs"


def names(
    probe: dict[str, Any], device: str, objective: str = "step", **compile_with: Any
) -> list[str]:
    found = candidates.candidates(
        probe, device, Objective.parse(objective), compile_with
    )
    return [candidate.name for candidate in found if not candidate.why_not]


@pytest.mark.parametrize(
    ("probe", "device", "objective", "first"),
    [
        (
            BLOCKS,
            "cpu",
            "step",
            [
                "full",
                "regional",
                "nested",
                "core:encode",
                NESTED_BREAKS,
                f"full:{TUNED}",
                "full, cpp_wrapper=True",
                "full, aggressive_fusion=True",
                "full, max_autotune_gemm=True",
            ],
        ),
        (
            {**BLOCKS, "blocks": {}, "core": []},
            "cuda",
            "step",
            [
                "full",
                "full+graph",
                NESTED_BREAKS,
                "full+graph, coordinate_descent_tuning=True",
                "full+graph, triton.enable_pdl=True",
                f"full+graph:{TUNED}",
                "full:reduce-overhead",
                f"full+graph:{TUNED}, triton.enable_pdl=True",
                "eager+graph",
            ],
        ),
        (BLOCKS, "cuda", "steps:9", ["regional", "regional+graph", "nested"]),
        (VARYING, "cpu", "step", ["full", "regional", "full:marks", "regional:marks"]),
        (
            BLOCKS,
            "cpu",
            "memory",
            ["full", "regional", "nested", "core:encode", NESTED_BREAKS],
        ),
    ],
)
def test_candidates_in_order(
    probe: dict[str, Any], device: str, objective: str, first: list[str]
) -> None:
    assert names(probe, device, objective)[: len(first)] == first


@pytest.mark.parametrize(
    ("fact", "device", "left_out"),
    [
        ({"blocks": {}}, "cpu", {"regional", "nested"}),
        (
            {"matmul_share": 0.05},
            "cpu",
            {f"full:{TUNED}", "full, max_autotune_gemm=True"},
        ),
        (
            {"unavailable": {"inductor.triton.enable_pdl": "this GPU is too old"}},
            "cuda",
            {
                f"{form}, triton.enable_pdl=True"
                for form in ("full+graph", f"full+graph:{TUNED}")
            },
        ),
    ],
)
def test_facts_leave_candidates_out_with_a_reason(
    fact: dict[str, Any], device: str, left_out: set[str]
) -> None:
    probe = {**BLOCKS, **fact}
    found = candidates.candidates(probe, device, Objective(), {})
    assert set(names(BLOCKS, device)) - set(names(probe, device)) == left_out
    assert left_out <= {each.name for each in found if each.why_not}


def test_settings_of_inductor_are_not_tried_with_other_backends() -> None:
    tried = names(BLOCKS, "cpu", backend="eager")
    assert [name for name in tried if ", " in name] == [NESTED_BREAKS]


def test_compile_argument_that_is_a_switch_is_tried_once() -> None:
    tried = names(BLOCKS, "cpu", options={"cpp_wrapper": True})
    assert "full, cpp_wrapper=True" not in tried


@pytest.mark.parametrize(
    ("name", "device", "available"),
    [
        ("inductor.cpp_wrapper", "cpu", True),
        ("dynamo.nested_graph_breaks", "cpu", True),
        ("dynamo.no_such_setting", "cpu", False),
        ("inductor.max_autotune_gemm", "cuda", True),
        ("inductor.max_autotune_gemm", "cpu", False),
        ("inductor.max_autotune_gemm", "cpu with frozen weights", True),
        ("inductor.triton.enable_pdl", "cpu", False),
        ("inductor.triton.enable_pdl", "cuda", True),
        ("inductor.triton.enable_pdl", "cuda 8.6", False),
    ],
)
def test_installed_torch_has_the_setting(
    name: str, device: str, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability = (8, 6) if device == "cuda 8.6" else (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    config = importlib.import_module("torch._inductor.config")
    with config.patch(freezing="frozen" in device):
        why = configs.why_unavailable(name, device.split()[0])
    assert (why is None) == available


# -- replays ---------------------------------------------------------------------------


def test_outputs_are_compared_bit_by_bit() -> None:
    """Minus zero equals zero, but has another bit pattern; NaN equals its own bits."""

    def outputs(zero: float) -> dict[str, Any]:
        return {"output": torch.tensor([zero, float("nan")]), "label": float("nan")}

    assert numerics.different_bits(outputs(0.0), outputs(0.0)) is None
    assert numerics.different_bits(outputs(-0.0), outputs(0.0)) == "output"
    assert numerics.different_bits({}, outputs(0.0)) == "label"


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


def test_replays_of_processes(tmp_path: Path) -> None:
    """Another process differs in its first pass; a base that varies proves nothing."""
    outputs = {"sound": "True", "racing": "False", "varying": "passes % 7 == 0"}
    plans = {}
    for name, when in outputs.items():
        (tmp_path / f"{name}.py").write_text(UNSTEADY.format(when=when))
        target = parse_target(f"{tmp_path / name}.py:make")
        plans[name] = Plan(target, (), quiet=True)
    plain = replace(parse("full"), arguments={"backend": "eager"})
    sound, racing, varying = (
        Candidate(StrategySpec(plain, variant={"config": name})) for name in outputs
    )
    with forked():
        worker = Worker(plans["sound"], tmp_path, shares_caches=True)
        try:
            worker._refer()
            worker._running(sound)
            worker.session.plan = plans["racing"]
            expected = Replayed(0, "call 0: output")
            assert worker.replay(racing, sound, 50, 300) == expected
            worker.session.plan = plans["varying"]
            with pytest.raises(WorkerError, match="repeat its own outputs"):
                worker.replay(sound, varying, 50, 300)
        finally:
            worker.close()


# -- a recipe --------------------------------------------------------------------------

SERVICE = """
import sys
sys.path.insert(0, {folder!r})
import torch, torchproof, planted

model, [call] = planted.make_broken()
expected = model(*call)
model = torchproof.compile(model, recipe="torchproof.toml")
torch.testing.assert_close([model(*call) for _ in range(2)], [expected] * 2)
print(torchproof.status(model).strategy, torch._dynamo.config.nested_graph_breaks)
"""


def test_recipe_keeps_settings_of_dynamo_and_production_applies_them(
    tmp_path: Path,
) -> None:
    fates = {"full": Fate(2.0, graph_breaks=1), NESTED_BREAKS: Fate(1.0)}
    chosen, search, _ = Setting(fates).run()
    found = outcome.recipe_of(search, chosen, Run("", "", "", {}, {}), train=False)
    assert found.dynamo == {"nested_graph_breaks": True}
    assert recipe.loads(found.dumps()).dynamo == found.dynamo
    plain = replace(found.strategy, arguments={"backend": "eager"})  # compiles faster
    replace(found, strategy=plain).write(tmp_path / "torchproof.toml")
    done = forked_commands.python(SERVICE.format(folder=str(HERE)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["full", "True"]
