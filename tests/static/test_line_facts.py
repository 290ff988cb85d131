"""What the source says about a line, a file and a number."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.checking.static.attribute_facts import constant_use, first_value
from torchproof.checking.static.line_facts import facts_at, marks_in, sets
from torchproof.records import blame

LINES = """\
def f(self, x, table):
    y = x * 2
    print(y)
    with lock:
        z = sorted(table)
    for row in table:
        try:
            y = row[x]
        except KeyError:
            log(y)
    if torch.equal(x, table):
        x += 1
    return sorted(y)
"""


def test_facts_about_lines(tmp_path: Path) -> None:
    file = tmp_path / "lines.py"
    file.write_text(LINES)
    at = {n: facts_at(str(file), n) for n in range(1, LINES.count("\n") + 1)}
    assert [n for n in at if at[n].is_unused] == [3, 10]
    assert {n: at[n].with_line for n in at if at[n].with_line} == {4: 4, 5: 4}
    assert {n for n in at if at[n].loop_line} == {6, 7, 8, 9, 10}
    assert {n: at[n].try_line for n in at if at[n].try_line} == {8: 7}
    assert {n for n in at if at[n].from_arguments} >= {5, 11}
    assert not at[3].from_arguments and not at[13].from_arguments
    assert facts_at(str(file), 11, "torch.equal(x, table)").is_test
    assert not facts_at(str(tmp_path / "absent.py"), 3).is_readable


def test_what_a_file_has_already(tmp_path: Path) -> None:
    file = tmp_path / "settings.py"
    file.write_text(
        "import torch._dynamo.config as config\n"
        "torch._dynamo.config.capture_scalar_outputs = True\n"
        "with config.patch(allow_rnn=True): pass\n"
        "torch._dynamo.config.reorderable_logging_functions.add(print)\n"
        "torch._dynamo.mark_dynamic(batch['x'], [0, 1])\n"
    )
    config = "torch._dynamo.config."
    assert sets(str(file), f"{config}capture_scalar_outputs", "True")
    assert not sets(str(file), f"{config}capture_scalar_outputs", "False")
    assert sets(str(file), f"{config}allow_rnn", "True")
    assert sets(str(file), f"{config}reorderable_logging_functions", "print")
    [mark] = marks_in(str(file))
    assert (mark.line, mark.tensor, mark.dimensions) == (5, 'batch["x"]', (0, 1))


CLASS = """\
class Net(Base):
    def __init__(self, n: int = 3):
        {first}
    def forward(self, x, table):
        {use}
"""


@pytest.mark.parametrize(
    ("use", "constant"),
    [
        ("return x + self.n", None),
        ("self.n += 1; return self.lin(x * self.n) * 2", None),
        ("return x / (1 - self.beta ** self.n)", None),
        ("return x * max(0.5, 1 - 0.01 * self.n)", None),
        ("return x * math.sqrt(self.n) + round(self.n / 3)", None),
        ("if self.n > 3: return x", None),
        ("self.other = self.n", None),
        ("return x * math.exp(-0.1 * self.n)", "math.exp(-0.1 * self.n)"),
        ("return x * math.pow(x.mean() * self.n, 2)", "math.pow("),
        ("k = self.n + x.shape[1]; return table[k]", "table[k]"),
        ("return [x for i in range(self.n)]", "range(self.n)"),
        ("return f'{self.n}'", "self.n"),
        ("return helper(x, self.n)", "helper(x, self.n)"),
    ],
)
def test_uses_of_a_number(use: str, constant: str | None, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(CLASS.format(first="self.n = range(n)", use=use))
    found = constant_use("self.n", [str(file)], line=5)
    assert (constant or "") in (found.code if found else "")
    assert bool(found) == bool(constant)


def test_uses_of_an_item_of_a_global(tmp_path: Path) -> None:
    file = tmp_path / "steps.py"
    for use, is_constant in (
        ("x * STATE['step']", False),
        ("[x] + [x for _ in range(STATE['step'])]", True),
        ("x * STATE['step'] + range(STATE['other'])[0]", False),
    ):
        file.write_text(f"print(f'{{STATE[\"step\"]}}')\nf = lambda x: {use}\n")
        blame.forget()
        assert bool(constant_use("STATE['step']", [str(file)])) == is_constant


def test_a_value_that_the_source_does_not_show_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    for first, known in (("self.n = 1", "1"), ("self.n = 1; self.n = 2", None)):
        file.write_text(CLASS.format(first=first, use="return x + self.n"))
        blame.forget()
        assert first_value("n", [str(file)]) == known
