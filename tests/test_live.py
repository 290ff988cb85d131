"""Live objects as targets: models and functions of this process and of cells."""

from __future__ import annotations

import copy
import functools
import linecache
import logging
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from forked_commands import forked
from torch.utils.data import DataLoader, TensorDataset

import torchproof
from torchproof.records import Run, UserError
from torchproof.report import render
from torchproof.targets.live_calls import BATCHES, calls_of

CELLS = {
    1: """\
import torch
from torch import nn
SCALE = torch.full((1,), 2.0)
from dataclasses import dataclass
log = open('/dev/null')

@dataclass
class Config:  # no method of it has a file
    size: int = 8
""",
    2: """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = self.fc(self.norm(x)) * SCALE
        if y.sum().item() > 0:
            y = y + 1
        return y
""",
    3: """\
class Clean(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.fc = nn.Linear(self.config.size, 8)

    def forward(self, x):
        return torch.relu(self.fc(x)) * SCALE
""",
    4: "def logged(x):\n    log.write('a')\n    return x + 1\n",
    6: "def holder(x):\n    return held(x)\n",
    5: "double = lambda x: x * SCALE.sum().item()\n",
}


class _Compiler:
    """What IPython knows about its cells."""

    def format_code_name(self, file: str) -> tuple[str, str] | None:
        number = file.partition("/ipykernel_1/")[2].removesuffix(".py")
        return ("Cell", f"In[{number}]") if number else None


def execute_cell(number: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"/tmp/ipykernel_1/{number}.py"
    entry = (len(text), None, text.splitlines(keepends=True), name)
    monkeypatch.setitem(linecache.cache, name, entry)
    code = compile(text, name, "exec", dont_inherit=True)
    exec(code, vars(sys.modules["__main__"]))


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The names of a notebook whose cells have run, and children that are forked."""
    shell = types.SimpleNamespace(compile=_Compiler())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    for number, text in CELLS.items():
        execute_cell(number, text, monkeypatch)
    with forked():
        yield vars(main)
    vars(main)["log"].close()


quick = functools.partial(torchproof.check, effort="quick")


def state(model: torch.nn.Module) -> dict[str, Any]:
    """Everything that a run could change."""
    parts = {
        f"{n} {k}": copy.copy(v)
        for n, m in model.named_modules()
        for k, v in vars(m).items()
    }
    return {
        **{n: t.clone() for n, t in model.state_dict().items()},
        **{f"grad {n}": p.grad for n, p in model.named_parameters()},
        **{n: v for n, v in parts.items() if isinstance(v, (bool, int, str))},
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state()[1],  # type: ignore[index]
        "default": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        if isinstance(value, torch.Tensor | numpy.ndarray):
            assert bool((value == after[name]).all()), name
        else:
            assert value == after[name], name


def test_model_of_a_cell_is_checked(cell: dict[str, Any]) -> None:
    model = cell["Net"]().train()
    before = state(model)
    run = quick(model, [(torch.ones(4, 8),)], train=True)
    assert_same(before, state(model))
    assert (run.target, run.error, run.counts["graph_breaks"]) == ("live:Net", None, 1)
    [finding] = [f for f in run.findings if f.code == "GB101"]
    assert (finding.file, finding.line, finding.origin) == ("In [2]", 9, "both")
    assert finding.function == "Net.forward"
    assert finding.source and "y.sum().item()" in finding.source
    assert len(finding.context) > 3
    text = render(run, "text")
    assert "In [2], line 9" in text and "/tmp" not in text
    assert "torchproof.fix(model, calls" in text
    run = quick(cell["Clean"](), torch.ones(4, 8))
    assert run.counts["graphs"] == 1 and not run.findings and run.error is None
    assert run.parts["breaks"].status == "passed" and not run.parts["breaks"].why


def test_unpicklable_object_is_checked_in_process(cell: dict[str, Any]) -> None:
    model = cell["Net"]().train()
    call = (torch.ones(4, 8),)
    model(*call).sum().backward()
    for parameter in model.parameters():
        parameter.grad = None
    before = state(model)
    cell["model"] = model
    run = torchproof.check(lambda x: model(x), [call], train=True)
    assert_same(before, state(model))
    assert torch.equal(call[0], torch.ones(4, 8))
    assert run.counts["graph_breaks"] == 1
    [finding] = [f for f in run.findings if f.code == "GB101"]
    assert (finding.file, finding.line) == ("In [2]", 9)
    assert run.parts["breaks"].status == "found"
    assert run.parts["baseline"].status == "skipped"
    assert "lambda" in run.parts["baseline"].why
    assert "in this process, because" in run.parts["breaks"].why
    assert "torchproof.fix" not in render(run, "text")


def test_quiet_hides_what_torch_logs() -> None:
    from torchproof.observe import in_process

    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    loggers = [logging.getLogger(n) for n in ("torch._dynamo", in_process._TRACE)]
    handler = Handler()
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with in_process._torch_log_hidden():
            loggers[0].error("hidden")
            loggers[1].error("trace")
        loggers[0].error("shown")
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert seen == ["trace", "shown"]


@pytest.mark.parametrize("verb", [torchproof.bench, torchproof.tune, torchproof.fix])
def test_verbs_that_need_a_child_say_so(cell: dict[str, Any], verb: Any) -> None:
    with pytest.raises(UserError, match=r"a lambda.*check"):
        verb(cell["double"], [(torch.ones(2),)])


def test_attribute_that_cannot_be_sent_is_named(cell: dict[str, Any]) -> None:
    model = cell["Clean"]()
    model.fc.log = cell["log"]
    with pytest.raises(UserError, match=r"Clean\.fc\.log cannot be sent") as caught:
        torchproof.bench(model, torch.ones(4, 8))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"`log` cannot be sent to a child"):
        quick(cell["logged"], torch.ones(2))
    exec("class Typed(nn.Module):\n    def forward(self, x): return x + 1", cell)
    cell["held"] = cell["Typed"]()
    with pytest.raises(UserError, match=r"Typed .* its source cannot be read"):
        torchproof.bench(cell["holder"], torch.ones(2))


@pytest.mark.parametrize(
    ("target", "calls", "message"),
    [
        (torch.nn.Linear(2, 2), None, "needs calls"),
        (torch.nn.Linear, [(torch.ones(2),)], "is a class"),
        (torch.nn.Linear(2, 2), [], "empty"),
        (torch.nn.Linear(2, 2), [torch.ones(2), torch.ones(2)], r"\[\(a,\), \(b,\)\]"),
        (torch.nn.Linear(2, 2), [[torch.ones(2)]], "call 0 is a list"),
        (torch.nn.Linear(2, 2), (x for x in [(1,)]), "only once"),
        (torch.nn.Linear(2, 2), 7, "calls is a int"),
        (torch.nn.Linear(2, 2), {1: torch.ones(2)}, "names of arguments"),
        (7, [(1,)], "no target"),
        ("workload:gpt", [(1,)], "has its own calls"),
        ("live:Net", None, "an object of a Python process"),
        (torch.nn.Linear(2, 2), DataLoader(TensorDataset(torch.ones(0, 2))), "empty"),
    ],
)
def test_misuse_is_one_line(target: Any, calls: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        torchproof.check(target, calls)
    assert "\n" not in str(caught.value)


def test_live_object_is_not_packed() -> None:
    pack: Any = torchproof.pack
    with pytest.raises(UserError, match="factory"):
        pack(torch.nn.Linear(2, 2), purpose="repro")


def test_forms_of_calls() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    model = torch.nn.Linear(2, 2)
    assert calls_of(model, x) == [(x,)]
    assert calls_of(model, [x]) == [(x,)]
    assert calls_of(model, (x, y)) == [(x, y)]
    assert calls_of(model, [(x,), {"input": y}]) == [(x,), {"input": y}]
    assert calls_of(model, {"input": x}) == [{"input": x}]


def one(x: Any) -> Any: ...
def two(x: Any, y: Any, mask: Any = None) -> Any: ...
def every(*inputs: Any) -> Any: ...


@pytest.mark.parametrize(("fn", "count"), [(one, 1), (two, 2), (every, 3)])
def test_batches_of_a_loader(fn: Any, count: int) -> None:
    data = TensorDataset(torch.arange(12.0), torch.arange(12), torch.ones(12))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    before = torch.get_rng_state()
    calls = calls_of(fn, loader)
    assert torch.equal(before, torch.get_rng_state())
    assert [len(call) for call in calls] == [count] * BATCHES
    dicts: Any = [{"x": torch.ones(2)}] * 3
    named: Any = DataLoader(dicts)
    numbers: Any = [1.0, 2.0]
    assert [call["x"].shape for call in calls_of(one, named)] == [(1, 2)] * 3
    assert [len(call) for call in calls_of(every, DataLoader(numbers))] == [1, 1]


def test_history_is_that_of_the_session(
    cell: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of another notebook may mean another model: nothing of it is resolved."""
    call = torch.ones(4, 8)
    monkeypatch.setenv("JPY_SESSION_NAME", "/work/one.ipynb")
    assert quick(cell["Net"](), call).target == "live:one.Net"
    execute_cell(7, CELLS[3].replace("Clean", "Net"), monkeypatch)
    again = quick(cell["Net"](), call)
    assert [(f.code, f.status) for f in again.findings] == [("GB101", "resolved")]
    monkeypatch.setenv("JPY_SESSION_NAME", "/work/other/one.ipynb")
    assert not quick(cell["Net"](), call).findings


@pytest.mark.slow
def test_bench_of_a_live_model(cell: dict[str, Any]) -> None:
    run: Run = torchproof.bench(
        cell["Clean"](),
        [(torch.ones(4, 8),)],
        strategies=("full",),
        compile={"backend": "eager"},
        seconds=0.1,
        repeats=1,
    )
    assert {row.strategy for row in run.measurements} == {"eager", "full"}
    assert all(row.median_ms for row in run.measurements)
