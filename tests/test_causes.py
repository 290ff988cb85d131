"""Causes and consequences: what a run shows to follow from what, and what it does not.

Each program has a twin in which the second finding has a reason of its own.
"""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from check_runs import ITEM
from check_runs import SIZE as CHANGE

from torchproof.checking import causes, rules
from torchproof.records.cause_tree import CauseTree
from torchproof.records.run import Finding, Run
from torchproof.report import formats

HEAD = "import torch\nfrom torch import nn\n\n"


def findings(tmp_path: Path, observe: Any, program: str, **options: Any) -> CauseTree:
    file = tmp_path / "program.py"
    file.write_text(HEAD + textwrap.dedent(program))
    factory = ":make" if "def make()" in program else ""
    found = rules.matched(observe(f"{file}{factory}", **options))
    every = [each.finding for each in found]
    known, stops = causes.explain(found), causes.stopped(found)
    return CauseTree(causes.linked(every, known, stops))


def only(tree: CauseTree, code: str) -> Finding:
    [cause] = [f for f in tree.causes if f.code.startswith(code)]
    return cause


# -- functions that are compiled apart because of a break ------------------------------

SPLIT = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def inner(self, x):
        y = x * 2
        print("inside")
        return self.rest(y)

    def rest(self, y):
        STATEMENT
        return y + 1

    def forward(self, x):
        return self.inner(torch.cat((x, x))).sum()


def make():
    net = Net()
    return net, [(torch.zeros(n),) for n in (4, 4, 6, 8)]
"""


def test_a_recompile_behind_a_break_follows_from_it(
    tmp_path: Path, observe: Any
) -> None:
    tree = findings(tmp_path, observe, SPLIT.replace("STATEMENT", "pass"))
    effects = tree.effects(only(tree, "GB1"))
    assert effects and {f.kind for f in effects} == {"recompile"}
    assert all("the break at" in (f.because or "") for f in effects)
    assert all(f.certainty == "likely" for f in effects)
    # The input's own change is not an effect of the break.
    assert only(tree, "RC201").message.startswith("size 0 of `x` changed")


def test_an_attribute_that_changes_is_not_the_fault_of_a_break(
    tmp_path: Path, observe: Any
) -> None:
    program = SPLIT.replace("STATEMENT", "self.calls += 1; y = y * self.calls")
    tree = findings(tmp_path, observe, program.replace("(4, 4, 6, 8)", "(4,) * 5"))
    assert only(tree, "RC213").cause_of == ()


def test_what_the_user_disabled_explains_nothing(tmp_path: Path, observe: Any) -> None:
    program = """\
    @torch.compiler.disable
    def log(x):
        return x.mean()

    class Net(nn.Module):
        def forward(self, x):
            y = torch.cat((x, x))
            log(y)
            return y * 2

    def make():
        return Net(), [(torch.zeros(n),) for n in (4, 6, 8)]
    """
    tree = findings(tmp_path, observe, program)
    assert tree.total == 0


ALONE = """\
def make():
    names = {"a": 1, "b": 2}
    def step(x):
        for _ in range(2):
            x = x + 1
            print("here")
        shares = EXPRESSION
        return x * shares
    return step, [(torch.ones(4),)] * 3
"""


def test_a_comprehension_that_runs_alone_follows_from_the_skip(
    tmp_path: Path, observe: Any
) -> None:
    program = ALONE.replace("EXPRESSION", "len({i: x * n for i, n in names.items()})")
    tree = findings(tmp_path, observe, program)
    [cause] = tree.causes
    assert "print" in (cause.source or "")
    # Nothing is compiled since the whole function is skipped: that is no other finding.
    assert not [f for f in (cause, *tree.effects(cause)) if f.code == "NC805"]
    assert cause.stops == ("make.step",) and "(NC805)" in cause.evidence[-1]


def test_a_comprehension_with_a_break_of_its_own_is_a_cause(
    tmp_path: Path, observe: Any
) -> None:
    program = ALONE.replace("EXPRESSION", "sum([(x * i).sum().item() for i in (1, 2)])")
    tree = findings(tmp_path, observe, program)
    # Since 3.12 a comprehension is part of its function, and is skipped with it.
    own = {"GB101"} if sys.version_info < (3, 12) else set()
    assert {f.code for f in tree.causes} == {"GB104", *own}


ON_ONE_LINE = """\
def make():
    def step(x):
        y = x.sin()
        STATEMENT
        return y.cos()
    return step, [(torch.ones(4),)] * 3
"""


def test_breaks_of_one_expression_are_one_finding(tmp_path: Path, observe: Any) -> None:
    program = ON_ONE_LINE.replace("STATEMENT", "print(y.sum().item())")
    tree = findings(tmp_path, observe, program)
    [cause] = tree.causes
    assert (cause.code, cause.line) == ("GB104", 7) and not tree.effects(cause)
    assert "(GB101)" in cause.evidence[-1]


def test_breaks_of_two_statements_are_two_findings(
    tmp_path: Path, observe: Any
) -> None:
    program = ON_ONE_LINE.replace("STATEMENT", "y.sum().item()\n        print('here')")
    tree = findings(tmp_path, observe, program)
    assert {(f.code, f.line) for f in tree.causes} == {("GB101", 7), ("GB104", 8)}


def test_a_break_that_stops_the_whole_function_is_fixed_first() -> None:
    dear = replace(ITEM, code="GB104", cost_us=900.0)
    whole = replace(ITEM, kind="skipped_frame", line=9, cost_us=None, stops=("Net",))
    assert causes.ranked([dear, whole]) == [whole, dear]
    assert causes.ranked([whole, replace(dear, stops=("Net",))])[0].code == "GB104"


# -- one change of an input ------------------------------------------------------------

TWO = """\
@torch.compile(backend="eager")
def encode(a):
    return a * 2

@torch.compile(backend="eager")
def decode(b):
    return b + 1

def step(x, y):
    encode(x)
    decode(y)

for n in (4, 4, 5):
    x = torch.zeros(n, dtype=torch.float64 if n == 5 else torch.float32)
    step(x, OTHER)
"""


def test_one_change_of_one_input_is_one_cause(tmp_path: Path, observe: Any) -> None:
    program = TWO.replace("def step(x, y)", "def step(x)").replace(
        "decode(y)", "decode(x)"
    )
    tree = findings(tmp_path, observe, program.replace("x, OTHER", "x"))
    [cause] = tree.causes
    [effect] = tree.effects(cause)
    assert effect.because == "the same change of `x`"


def test_two_inputs_that_change_together_are_two_causes(
    tmp_path: Path, observe: Any
) -> None:
    tree = findings(tmp_path, observe, TWO.replace("OTHER", "x.clone()"))
    assert len(tree.causes) == 2 and tree.total == 0


# -- the recompile limit ---------------------------------------------------------------


@pytest.mark.slow
def test_the_limit_follows_from_the_recompiles(tmp_path: Path, observe: Any) -> None:
    program = """\
    def make():
        def step(x, word):
            return x * len(word)
        return step, [(torch.ones(3), "a" * n) for n in range(1, 12)]
    """
    tree = findings(tmp_path, observe, program)
    [cause] = tree.causes
    assert cause.kind == "recompile"
    assert [f.code for f in tree.effects(cause)] == ["RC290"]
    assert tree.severity(cause) == "high"


# -- links between findings ------------------------------------------------------------

CAUSE, SIZE = replace(ITEM, cost_us=None), replace(CHANGE, count=2)


def explained(*findings: Finding) -> list[Finding]:
    known = {SIZE.identity: causes.Explanation((CAUSE.identity,), "it is apart")}
    return causes.linked(findings, known)


def test_links_have_both_ends() -> None:
    first, second = explained(SIZE, CAUSE)
    assert first.consequences == (SIZE.identity,)
    assert second.cause_of == (CAUSE.identity,)
    assert json.loads(json.dumps(first.to_json()))["consequences"] == [SIZE.identity]
    assert Finding.from_json(second.to_json()) == second


def test_without_its_cause_a_finding_is_a_cause() -> None:
    """With --ignore GB the break is not reported, and the recompile must be."""
    [left] = explained(SIZE)
    assert left.cause_of == () and CauseTree([left]).causes == [left]
    intended = replace(CAUSE, status="intentional")
    assert CauseTree(explained(SIZE, intended)).causes[0].code == SIZE.code


def test_circles_and_strangers_are_ignored() -> None:
    first = replace(CAUSE, cause_of=(SIZE.identity, "nobody"))
    second = replace(SIZE, cause_of=(CAUSE.identity,))
    tree = CauseTree([first, second])
    assert tree.causes == [first, second] and tree.total == 0


def test_a_cause_is_as_severe_as_what_it_explains() -> None:
    low = replace(CAUSE, severity="low")
    high = replace(SIZE, severity="high")
    tree = CauseTree(explained(high, low))
    assert tree.causes[0].severity == "low"
    assert tree.severity(tree.causes[0]) == "high"


def run() -> Run:
    cause, effect = explained(SIZE, CAUSE)
    return Run(
        id="20260101-0000-x",
        target="model.py:make",
        strategy="full",
        environment={"torch": "2.13.0", "python": "3.11", "device": "cpu"},
        counts={"calls": 6, "recompiles": 2},
        findings=(cause, effect),
    )


@pytest.mark.parametrize("format", ["text", "md", "html", "github"])
def test_every_report_lists_the_effect_below_its_cause(format: str) -> None:
    text = " ".join(formats.render(run(), format, width=200).split())
    assert "1 cause, 1 effect" in text
    assert "also explains 2 recompiles in 1 function (likely)" in text.replace(
        "Also", "also"
    )


def test_an_effect_is_only_a_note_for_code_scanning() -> None:
    document = json.loads(formats.render(run(), "sarif"))
    cause, effect = document["runs"][0]["results"]
    assert cause["level"] == "error" and effect["level"] == "note"
    assert effect["properties"]["cause_of"] == [CAUSE.identity]
    assert effect["relatedLocations"] == cause["locations"]
