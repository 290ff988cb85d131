"""Marks on sizes: what a finding proposes, and what they do to recompiles."""

from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof.checking import rules
from torchproof.records import Mark, Overlay
from torchproof.targets import overlay

FACTORY = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, batch):
        return torch.softmax(x * batch["mask"], -1).sum((1, 2))


def make():
    return Model(), [
        (torch.ones(b, n, 8), {"mask": torch.ones(b, n, 1)}) for b, n in SHAPES
    ]
"""
UNBACKED = 'torch._dynamo.decorators.mark_unbacked({}, 0, shape_id="s0")'
CASES: dict[str, tuple[str, str, list[str]]] = {
    "length": (
        "((4, 5), (4, 7), (4, 9))",
        "RC201",
        ["torch._dynamo.maybe_mark_dynamic({}, 1)"] * 2,
    ),
    "batch of one": ("((4, 5), (1, 5), (3, 5))", "RC202", [UNBACKED] * 2),
    "independent": (
        "((6, 6), (6, 7), (8, 6))",
        "RC201",
        [f"torch._dynamo.mark_dynamic({{}}, {dim})" for dim in (0, 1)] * 2,
    ),
    "equal": ("((4, 5), (4, 5))", "", []),
}


def test_a_finding_names_the_sizes_and_marks_cure_it(
    observe_all: Any, tmp_path: Path
) -> None:
    files = {}
    for number, shapes in enumerate([case[0] for case in CASES.values()]):
        files[shapes] = tmp_path / f"model_{number}.py"
        files[shapes].write_text(FACTORY.replace("SHAPES", shapes))
    observed = observe_all([(f"{file}:make", {}) for file in files.values()])
    for (shapes, code, words), seen in zip(CASES.values(), observed, strict=True):
        found = {f.code: f for f in rules.check(seen)}
        marks = found[code].marks if code else ()
        assert code or not [f for f in found.values() if f.marks]
        half = len(words) // 2
        arguments = ["x"] * half + ["batch['mask']"] * half
        wanted = [w.format(a) for w, a in zip(words, arguments, strict=True)]
        assert [mark.code for mark in marks] == wanted
        assert_one_graph(files[shapes].read_text(), marks)
        remedy = found[code].remedy if code else None
        if remedy and remedy.kind == "mark":  # only marks that raise no error
            assert {mark.how for mark in remedy.marks} == {"maybe_mark_dynamic"}
            assert_one_graph(files[shapes].read_text(), remedy.marks)


def assert_one_graph(text: str, marks: tuple[Mark, ...]) -> None:
    scope: dict[str, Any] = {}
    exec(text, scope)
    model, calls = scope["make"]()
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    overlay.mark(Overlay(marks=marks), model, calls)
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for call in calls:
        assert torch.equal(compiled(*call), model(*call))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    "argument", ["y", "batch['other']", "batch['mask'].missing", "x[7]"]
)
def test_an_argument_that_is_not_there_is_not_marked(argument: str) -> None:
    def step(x: Any, batch: Any) -> None: ...

    mark = Mark(argument, 0, "mark_dynamic")
    call = (torch.ones(2), {"mask": torch.ones(2)})
    overlay.mark(Overlay(marks=(mark,)), step, [call])
    assert not hasattr(call[0], "_dynamo_dynamic_indices")
