"""Fake implementations that are drafted, and copies of tensors."""

import itertools
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchproof.checking.rules import operator_edits, python_edits
from torchproof.fixing.edits import applied
from torchproof.records import Frame, Remedy

HEAD = "import numpy\nimport torch\nfrom torch import Tensor\n\n\n"
ROWS = """def rows(x: Tensor, w: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    # by rows
    s = x.square().mean(-1, keepdim=True)
    return x * torch.rsqrt(s + eps) @ w, s
"""
_numbers = itertools.count()


def drafted(function: str, folder: Path) -> tuple[str, str, Remedy | None]:
    """The operator, the program with it, and the edit."""
    name = f"edits_{next(_numbers)}::op"
    file = folder / "program.py"
    text = f"{HEAD}@torch.library.custom_op('{name}', mutates_args=())\n{function}"
    file.write_text(text)
    return name, text, operator_edits.fake_edit(f"no fake for {name}", [str(file)])


def test_the_code_of_an_operator_runs_on_fake_tensors(tmp_path: Path) -> None:
    _, text, remedy = drafted(ROWS, tmp_path)
    assert remedy is not None
    assert (remedy.kind, remedy.tier) == ("edit", "safe")
    scope: dict[str, object] = {}
    exec(compile(applied(text, remedy.replacements), "program.py", "exec"), scope)
    rows = scope["rows"]
    assert callable(rows)
    real = rows(torch.rand(2, 4), torch.rand(4, 5))
    with FakeTensorMode():
        fake = rows(torch.rand(2, 4), torch.rand(4, 5))
    assert [(e.shape, e.dtype) for e in fake] == [(e.shape, e.dtype) for e in real]


@pytest.mark.parametrize(
    "line",
    [
        "return torch.from_numpy(numpy.sort(x.numpy()))",
        "return x * x.max().item()",
        "return x if x.sum() > 0 else x[:1]",
        "return helper(x)",
    ],
)
def test_an_operator_that_needs_values_gets_no_edit(line: str, tmp_path: Path) -> None:
    function = f"def op(x: Tensor) -> Tensor:\n    {line}\n"
    assert drafted(function, tmp_path)[2] is None


@pytest.mark.parametrize(
    ("line", "said", "new"),
    [
        ("y = copy.deepcopy(x)", "TensorVariable()", "y = x.detach().clone()"),
        (
            "d = {'a': copy.deepcopy(self.x), 'b': x}",
            "TensorVariable()",
            "d = {'a': self.x.detach().clone(), 'b': x}",
        ),
        ("y = copy.deepcopy(x)", "UserDefinedObjectVariable(Config)", None),
        ("y = copy.deepcopy([x])", "TensorVariable()", None),
        ("y = copy.deepcopy(x, memo)", "TensorVariable()", None),
    ],
)
def test_a_tensor_is_cloned(
    line: str, said: str, new: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"import copy\n\n\ndef f(self, x, memo):\n    {line}\n")
    frame = Frame(str(file), 5, "f", line)
    remedy = python_edits.edit_at(frame, said, [str(file)])
    assert (remedy is not None) == (new is not None)
    if remedy is not None:
        assert [each.new for each in remedy.replacements] == [(f"    {new}\n",)]
