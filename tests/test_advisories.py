"""Advisories: which torch they concern, what triggers them, and their programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from torchproof.checking import causes, rules
from torchproof.checking.rules.advisories import ADVISORIES, Advisory
from torchproof.observe.observer import Backwards
from torchproof.records import (
    Event,
    GraphEvent,
    Setting,
    WrapperEvent,
    WrongAnswerEvent,
)
from torchproof.records.events import Observation
from torchproof.records.operations import Operation
from torchproof.records.run import Finding, Frame
from torchproof.torch_private import GraphOperations

SETTING = "triton.mix_order_reduction"
DIT = """
import torch
from torch.nn.functional import layer_norm

def modulated(x, table):
    a, b, c, d = table.SLICES
    x = x + layer_norm(x, x.shape[-1:]) * (1 + a) + b
    return x + layer_norm(x, x.shape[-1:]) * (1 + c) + d

def make():
    table = torch.randn(1, 4, COLUMNS, requires_grad=True)
    return modulated, [(torch.randn(1, ROWS, COLUMNS), table)]
"""
TWO_GRAPHS = """
import torch
from torch import nn

def make():
    parts = [torch.compile(nn.Linear(4, 4)) for _ in range(2)]

    def step(x):
        CALL

    return step, [(torch.ones(2, 4),)]
"""


def on_gpu(observation: Observation, torch: str = "2.13.0", **arguments: str) -> Any:
    """What the same program shows on a GPU, as far as advisories look at it."""
    return replace(
        observation,
        environment={**observation.environment, "torch": torch},
        events=tuple(_on_gpu(event, arguments) for event in observation.events),
    )


def _on_gpu(event: Event, arguments: dict[str, str]) -> Event:
    if isinstance(event, WrapperEvent):
        return replace(event, arguments=arguments)
    if not isinstance(event, GraphEvent):
        return event
    moved = [
        replace(each, device="cuda" if each.device else "")
        for each in event.operations or ()
    ]
    return replace(event, operations=tuple(moved))


def advice(observation: Observation) -> list[Finding]:
    return [f for f in rules.check(observation) if f.code.startswith("AD")]


def remedy_of(finding: Finding) -> Setting:
    assert finding.remedy is not None and finding.remedy.kind == "setting"
    [setting] = finding.remedy.settings
    return setting


def codes(observation: Observation) -> list[str]:
    return [finding.code for finding in advice(observation)]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "few rows": {"rows": 4000, "columns": 1400},
    "unbound": {"slices": "unbind(1)"},
    "inference": {"train": False},
}


@pytest.fixture(scope="module")
def dit(
    observe_all: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Observation]:
    """Variants of a model with modulated norms, observed in one process."""
    folder, targets = tmp_path_factory.mktemp("dit"), []
    for number, variant in enumerate(VARIANTS.values()):
        text = DIT.replace("SLICES", variant.get("slices", "chunk(4, dim=1)"))
        text = text.replace("COLUMNS", str(variant.get("columns", 640)))
        path = folder / f"dit_{number}.py"
        path.write_text(text.replace("ROWS", str(variant.get("rows", 8192))))
        targets.append((f"{path}:make", {"train": variant.get("train", True)}))
    return dict(zip(VARIANTS, observe_all(targets), strict=True))


# -- versions --------------------------------------------------------------------------


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda a: a.code)
def test_an_advisory_agrees_with_what_its_program_did(advisory: type[Advisory]) -> None:
    known = advisory.known()
    assert known.code == advisory.code
    assert all(advisory.affects(version) for version in known.wrong)
    assert not any(advisory.affects(version) for version in known.right)
    assert not advisory.affects(None)
    if known.fixed:
        assert not advisory.affects(f"{known.fixed}.0+cu132")


def test_a_version_is_compared_by_its_numbers() -> None:
    rule = rules.by_code("AD101")
    assert isinstance(rule, Advisory)
    assert [rule.affects(f"2.{n}.1+cpu") for n in (9, 10, 14, 15)] == [
        *(False, True, True, False)
    ]


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda a: a.code)
def test_the_page_of_an_advisory_says_it_all(advisory: type[Advisory]) -> None:
    page = advisory.documentation()
    for title in ("Versions", "Upstream", "Program"):
        assert f"\n\n## {title}\n" in page
    for number in advisory.known().upstream:
        assert f"pytorch/pytorch/issues/{number}" in page
    assert "# The workaround" in page
    if not advisory.known().wrong:
        words = "did not show it" if advisory.known().unshown else "was not run"
        assert words in " ".join(page.split())


# -- what triggers them, besides the programs in tests/rules ---------------------------


@pytest.mark.slow
def test_modulated_norms_with_gradients_on_a_gpu(dit: dict[str, Observation]) -> None:
    [finding] = advice(on_gpu(dit["plain"]))
    assert finding.code == "AD101" and finding.kind == "hazard"
    assert (finding.suspects, finding.severity) == ("numerics", "medium")
    assert finding.source and "(1 + c) + d" in finding.source
    assert "8192 rows of 640" in finding.cause
    assert remedy_of(finding) == Setting(f"inductor.{SETTING}", False)


@pytest.mark.slow
def test_modulated_norms_that_cannot_hit_it(dit: dict[str, Observation]) -> None:
    observation = dit["plain"]
    assert codes(observation) == []  # on the CPU
    assert codes(on_gpu(observation, torch="2.15.0")) == []
    assert codes(on_gpu(observation, backend="aot_eager")) == []
    assert codes(on_gpu(observation, options=f"{{'{SETTING}': False}}")) == []
    variables = {"TORCHINDUCTOR_MIX_ORDER_REDUCTION": "0"}
    changed = {**observation.environment, "variables": variables}
    assert codes(on_gpu(replace(observation, environment=changed))) == []
    for name in ("few rows", "unbound", "inference"):
        assert codes(on_gpu(dit[name])) == [], name


@pytest.fixture
def two_graphs(observe: Any, tmp_path: Path) -> Any:
    def run(call: str) -> Observation:
        path = tmp_path / "two.py"
        path.write_text(TWO_GRAPHS.replace("CALL", call))
        found: Observation = observe(f"{path}:make", as_written=True)
        return found

    return run


def test_a_backward_that_waits_while_another_graph_runs(two_graphs: Any) -> None:
    observation = two_graphs("parts[1](parts[0](x)).sum().backward()")
    [finding] = advice(on_gpu(observation, mode="reduce-overhead"))
    assert finding.code == "AD102"
    assert remedy_of(finding) == Setting("compile.mode", "default")
    [tuned] = advice(on_gpu(observation, mode="max-autotune"))
    mode = Setting("compile.mode", "max-autotune-no-cudagraphs")
    assert remedy_of(tuned) == mode
    assert codes(on_gpu(observation)) == []  # no CUDA graphs
    no_graphs = on_gpu(observation, mode="max-autotune-no-cudagraphs")
    assert codes(no_graphs) == []
    assert codes(on_gpu(observation, "2.15.0", mode="reduce-overhead")) == []


def test_a_backward_that_follows_at_once(two_graphs: Any) -> None:
    observation = two_graphs("[part(x).sum().backward() for part in parts]")
    assert codes(on_gpu(observation, mode="reduce-overhead")) == []


# -- what is observed ------------------------------------------------------------------


def test_backwards_are_counted_once_and_late_ones_too() -> None:
    weight, seen = torch.ones(2, requires_grad=True), Backwards()
    results = []
    for name in ("0/0", "1/0"):
        seen.begin()
        results.append(weight * 2)
        seen.watch(name, (results[-1], results[-1] + 1, None))
    for result in results:
        result.sum().backward(retain_graph=True)
        result.sum().backward()
    assert seen.counts == {"0/0": 1, "1/0": 1}
    assert seen.late == {"0/0": 1}


def test_the_operations_of_checkpoints_belong_to_the_graph() -> None:
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    def inner(x: Any, y: Any) -> Any:
        return x.sin() + y

    def outer(x: Any, y: Any) -> Any:
        z = x * 2.5
        return torch.utils.checkpoint.checkpoint(inner, z, y, use_reentrant=False)

    torch._dynamo.reset()
    x = torch.ones(2, 3, requires_grad=True)
    torch.compile(outer, backend=keep)(x, torch.ones(3))
    found = GraphOperations.of(graphs[0])
    named = {row[0]: (at, row) for at, row in enumerate(found.rows)}
    at, multiplied = named["mul"]
    assert multiplied[2:7] == ([2.5], "tensor", [2, 3], "cpu", True)
    assert named["sin"][1][1] == [at]
    assert named["add"][1][1] == [named["sin"][0], 1]
    assert "in outer" in found.stacks[multiplied[-1]]


# -- what a run says -------------------------------------------------------------------


def test_a_wrong_answer_names_the_advisory_as_its_likely_cause() -> None:
    place = Frame("model.py", 3, "norm", "return x")
    regions = (
        Operation("input", needs_gradient=True),
        Operation("invoke_subgraph", (0,), part="part_0", frames=(place,)),
        Operation("invoke_subgraph", (1,), part="part_0", frames=(place,)),
    )
    graph = GraphEvent(compile_id="0/0", operations=regions, backwards=1)
    wrong = WrongAnswerEvent(layer="Inductor")
    found = rules.matched(Observation((graph, wrong), {"torch": "2.13.0"}))
    linked = causes.linked([each.finding for each in found], causes.explain(found))
    by_code = {finding.code: finding for finding in linked}
    advisory, answer = by_code["AD103"], by_code["NM401"]
    assert answer.cause_of == (advisory.identity,) and answer.certainty == "likely"
    assert "AD103" in (answer.because or "")
    assert advisory.consequences == (answer.identity,)
