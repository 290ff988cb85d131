"""Strategies that record the whole step in a CUDA graph, with a stand-in for one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from twins import Block

import torchproof
from torchproof.measure import rows
from torchproof.measure.comparison.decisions import exclusion_reason
from torchproof.measure.replies import Facts, SampledRound
from torchproof.measure.specs import Plan, StrategyJob, StrategySpec
from torchproof.measure.strategy_state import StrategyState
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records.run import Frame, UserError
from torchproof.runtime.cudagraph import build_graph
from torchproof.strategies import applied, apply, source_lines
from torchproof.strategies.strategy import NotApplicable, parse, with_arguments
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target
from torchproof.targets.target import parse as parse_target

EXAMPLE = (torch.ones(2, 4),)


class Recorded:
    """Stands in for what `torchproof.graph` returns, without a graph."""

    def __init__(self, step: Any, train: bool, falls_back: list[str]) -> None:
        self.step, self.train, self.falls_back = step, train, falls_back

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self.step(*args, **kwargs)
        if self.train:
            calls.loss(output).backward()
        return output


class Recorder:
    """Stands in for `torchproof.graph` and keeps its arguments."""

    def __init__(self) -> None:
        self.arguments: Mapping[str, Any] = {}
        self.falls_back: list[str] = []

    def __call__(self, step: Any, example: Any, **arguments: Any) -> Recorded:
        self.arguments = {"example": example, **arguments}
        return Recorded(step, arguments.get("train", False), self.falls_back)


@pytest.fixture
def graph(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """In place of `torchproof.graph`, unless the test has a GPU."""
    made = Recorder()
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torchproof, "graph", made, raising=False)
        monkeypatch.setattr(applied, "on_cuda", lambda fn, calls: True)
    return made


# -- names and lines -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "arguments"),
    [
        (
            "regional+graph",
            {"options": {"coordinate_descent_tuning": True}},
            'strategy="regional", options={"coordinate_descent_tuning": True}',
        ),
        (
            "full+graph:max-autotune-no-cudagraphs",
            {"options": {"epilogue_fusion": False}},
            'strategy="full:max-autotune-no-cudagraphs", options={"max_autotune": True,'
            ' "coordinate_descent_tuning": True, "epilogue_fusion": False}',
        ),
        ("regional+graph", {}, 'strategy="regional"'),
        ("nested+graph", {"dynamic": None}, 'strategy="nested", dynamic=None'),
        ("full+graph:static", {"dynamic": False}, 'strategy="full:static"'),
    ],
)
def test_arguments_beside_the_name_are_passed(
    graph: Recorder, name: str, more: dict[str, Any], arguments: str
) -> None:
    strategy = with_arguments(parse(name), **more)
    call = f"import torchproof\n\nnet = torchproof.graph(net, example, {arguments})"
    assert source_lines.lines(strategy, "net") == call
    training = source_lines.lines(strategy, "net", train=True)
    assert training == f"{call[:-1]}, train=True)"
    apply(strategy, nn.Linear(4, 4), [EXAMPLE])
    given = {
        k: v for k, v in graph.arguments.items() if k not in ("example", "strategy")
    }
    again = build_graph.parse_strategy(graph.arguments["strategy"], given)
    assert again.arguments == strategy.arguments


def test_other_backends_and_methods_compile_before_recording(graph: Recorder) -> None:
    record = "net = torchproof.graph(net, example)"
    eager = source_lines.lines(parse("eager+graph"), "net")
    assert eager == f"import torchproof\n\n{record}"
    head = "import torch\nimport torchproof\n\n"
    assert source_lines.lines(parse("core+graph:encode"), "net") == (
        f"{head}net.encode = torch.compile(net.encode)\n{record}"
    )
    other = with_arguments(parse("full+graph:fullgraph"), backend="aot_eager")
    assert source_lines.lines(other, "net") == (
        f'{head}net = torch.compile(net, fullgraph=True, backend="aot_eager")\n{record}'
    )
    for name in ("regional+graph", "nested+graph"):
        blocks = with_arguments(parse(name), backend="aot_eager")
        with pytest.raises(NotApplicable, match=rf"^{re.escape(name)} .*\bbackend\b"):
            apply(blocks, nn.Linear(4, 4), [EXAMPLE])


def test_compile_records_no_graph() -> None:
    with pytest.raises(UserError, match=r"torchproof\.graph\(model, example, strat"):
        torchproof.compile(nn.Linear(2, 2), strategy="full+graph")


# -- on a target -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eager+graph", "full+graph", "nested+graph"])
def test_graph_strategy_needs_cuda(name: str) -> None:
    with pytest.raises(NotApplicable, match="CUDA device"):
        apply(parse(name), nn.Linear(4, 4), [EXAMPLE])


def test_first_call_is_the_example(graph: Recorder) -> None:
    done = apply(parse("regional+graph"), nn.Linear(4, 4), [EXAMPLE, (torch.ones(3),)])
    assert graph.arguments == {"example": EXAMPLE, "strategy": "regional"}
    assert not done.whole_step and done.falls_back == ()


# -- in a worker -----------------------------------------------------------------------


def prepared(
    monkeypatch: pytest.MonkeyPatch, name: str, folder: Any, device: str = "cpu"
) -> tuple[StrategyWorker, Facts, list[dict[str, Any]]]:
    """A worker that trains blocks, its facts, and the answers of two passes."""

    def fresh(job: Job) -> Loaded:
        torch.manual_seed(0)
        net = nn.Sequential(Block(), Block(), Block()).to(device)
        shapes = [(torch.rand(rows, 4, device=device),) for rows in (2, 9)]
        return Loaded(net, shapes, None, Frame("file.py", 1, "make"))

    monkeypatch.setattr(calls, "fresh", fresh)
    target = Target("file.py:make", "factory", "file.py")
    job = Job(target, train=True, device=device)
    worker = StrategyWorker(StrategyJob(parse(name), job))
    paths = [str(folder / f"{name}-{number}.pt") for number in range(2)]
    facts = worker.prepare(paths[0])
    for _ in range(5):
        worker._pass()
    worker.save_outputs(paths[1])
    saved = [torch.load(path, weights_only=False) for path in paths]
    return worker, facts, [outputs for _, outputs in saved]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cpu", "eager+graph"),
        pytest.param("cuda", "regional+graph", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's, while it traces
def test_step_that_runs_its_backward_gets_no_second_one(
    device: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    graph: Recorder,
    tmp_path: Any,
) -> None:
    _, _, plain = prepared(monkeypatch, "eager", tmp_path, device)
    worker, facts, recorded = prepared(monkeypatch, name, tmp_path, device)
    assert not facts.fell_back and not worker._fell_back()
    if device == "cpu":
        assert graph.arguments["train"]
    else:  # a real graph
        assert facts.first_call_s >= worker.fn.status().buckets[0].record_s
        assert worker.fn.status().replays >= 2 * (1 + 5 + 1)
    assert "call 0: gradient of 0.mix.weight" in plain[0]
    for mine, theirs in zip(recorded, plain, strict=True):
        assert mine.keys() == theirs.keys()
        for label, value in theirs.items():
            if isinstance(value, Tensor):
                assert_close(mine[label], value, rtol=1e-3, atol=1e-6, msg=label)


def test_fallback_from_a_graph_has_no_rank(
    monkeypatch: pytest.MonkeyPatch, graph: Recorder, tmp_path: Any
) -> None:
    graph.falls_back.append("Tensor.item() at step.py:7")
    _, facts, _ = prepared(monkeypatch, "eager+graph", tmp_path)
    assert facts.fell_back == ("Tensor.item() at step.py:7",)
    state = StrategyState(StrategySpec(parse("eager+graph")), tmp_path)
    sampled = SampledRound(times_ms=(1.0, 1.0), interrupted=(False, False))
    state.facts.append(replace(facts, rounds=((sampled,),)))
    [row] = rows.rows([state], Plan(parse_target("workload:gpt"), (state.spec,)), {})
    assert (row.median_ms, row.verdict, row.vs_eager) == (1.0, "fell back", None)
    assert "step.py:7" in (exclusion_reason(row) or "")
