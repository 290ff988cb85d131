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
CASES = {
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
}


@pytest.mark.parametrize("name", CASES)
def test_a_finding_names_the_sizes_and_marks_cure_it(
    name: str, observe: Any, tmp_path: Path
) -> None:
    shapes, code, words = CASES[name]
    file = tmp_path / "model.py"
    file.write_text(FACTORY.replace("SHAPES", shapes))
    found = {f.code: f for f in rules.check(observe(f"{file}:make"))}
    marks = found[code].marks
    arguments = [*["x"] * (len(words) // 2), *["batch['mask']"] * (len(words) // 2)]
    wanted = [w.format(a) for w, a in zip(words, arguments, strict=True)]
    assert [mark.code for mark in marks] == wanted
    scope: dict[str, Any] = {}
    exec(file.read_text(), scope)
    model, calls = scope["make"]()
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    overlay.mark(Overlay(marks=marks), model, calls)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for call in calls:
        assert torch.equal(compiled(*call), model(*call))
    assert len(graphs) == 1


def test_equal_sizes_have_no_marks(observe: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(FACTORY.replace("SHAPES", "((4, 5), (4, 5))"))
    assert not [f for f in rules.check(observe(f"{file}:make")) if f.marks]


@pytest.mark.parametrize(
    "argument", ["y", "batch['other']", "batch['mask'].missing", "x[7]"]
)
def test_an_argument_that_is_not_there_is_not_marked(argument: str) -> None:
    def step(x: Any, batch: Any) -> None: ...

    mark = Mark(argument, 0, "mark_dynamic")
    call = (torch.ones(2), {"mask": torch.ones(2)})
    overlay.mark(Overlay(marks=(mark,)), step, [call])
    assert not hasattr(call[0], "_dynamo_dynamic_indices")
