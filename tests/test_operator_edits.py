"""Fake implementations that are drafted, and code that gets no edit."""

import itertools
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchproof.checking.rules import first_calls, operator_edits, python_edits
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
    ("line", "said"),
    [
        ("y = copy.deepcopy(x)", "TensorVariable()"),
        ("for k in x: pass", "tp_iter_impl not implemented for generator"),
        ("y = x[:, n : n + 3]", "[UnspecializedPythonVariable(), 3]"),
    ],
)
def test_no_edit_changes_what_a_value_is(line: str, said: str, tmp_path: Path) -> None:
    """A copy of a leaf, an iterator that others use, a view that stops at an end."""
    file = tmp_path / "program.py"
    head = "import copy\nimport random\nimport torch\n\nf = sum(i for i in range(3))\n"
    text = f"{head}text = ','.join(str(i) for i in range(3))\n\n\ndef f(x):\n"
    text += f"    n = random.randint(0, 4)\n    {line}\n"
    file.write_text(text)
    frame = Frame(str(file), len(text.splitlines()), "f", line)
    assert python_edits.edit_at(frame, said) is None


@pytest.mark.parametrize(
    ("test", "body", "is_flag"),
    [
        ("self.done", "self.done = True", True),
        ("getattr(self, 'done', False)", "setattr(self, 'done', True)", True),
        ("self.done is not None", "self.done = 1", True),
        ("self.training", "self.count += 1", False),
        ("self.done == (not self.training)", "self.done = not self.training", False),
    ],
)
def test_what_is_done_once_has_a_flag_that_it_sets(
    test: str, body: str, is_flag: bool, tmp_path: Path
) -> None:
    file = tmp_path / "library.py"
    file.write_text(f"def set_up(self):\n    if {test}:\n        return\n    {body}\n")
    frame = Frame(str(file), 4, "set_up", body)
    assert first_calls._is_done_once(frame) == is_flag
