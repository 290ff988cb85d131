"""Causes and consequences: what a run shows to follow from what, and what it does not.

Each program has a twin in which the second finding has a reason of its own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from check_runs import ITEM
from check_runs import SIZE as CHANGE

from torchproof.checking import causes, rules
from torchproof.records import Remedy, Replacement
from torchproof.records.cause_tree import CauseTree
from torchproof.records.run import Finding

HEAD = "import torch\nfrom torch import nn\n\n"
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
DISABLED = """\
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
ON_ONE_LINE = """\
def make():
    def step(x):
        y = x.sin()
        STATEMENT
        return y.cos()
    return step, [(torch.ones(4),)] * 3
"""
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

def both(x):
    encode(x)
    decode(x)

for n in (4, 4, 5):
    x = torch.zeros(n, dtype=torch.float64 if n == 5 else torch.float32)
    CALL
"""
LIMIT = """\
def make():
    def step(x, word):
        return x * len(word)
    return step, [(torch.ones(3), "a" * n) for n in range(1, 12)]
"""
PROGRAMS = {
    "recompile behind a break": SPLIT.replace("STATEMENT", "pass"),
    "attribute that changes": SPLIT.replace(
        "STATEMENT", "self.calls += 1; y = y * self.calls"
    ).replace("(4, 4, 6, 8)", "(4,) * 5"),
    "disabled": DISABLED,
    "comprehension alone": ALONE.replace(
        "EXPRESSION", "len({i: x * n for i, n in names.items()})"
    ),
    "comprehension with a break": ALONE.replace(
        "EXPRESSION", "sum([(x * i).sum().item() for i in (1, 2)])"
    ),
    "one expression": ON_ONE_LINE.replace("STATEMENT", "print(y.sum().item())"),
    "two statements": ON_ONE_LINE.replace(
        "STATEMENT", "y.sum().item()\n        print('here')"
    ),
    "one input": TWO.replace("CALL", "both(x)"),
    "two inputs": TWO.replace("CALL", "step(x, x.clone())"),
    "limit": LIMIT,
}


@pytest.fixture(scope="module")
def trees(
    tmp_path_factory: pytest.TempPathFactory, observe_all: Any
) -> dict[str, CauseTree]:
    """All programs, observed in one process."""
    folder = tmp_path_factory.mktemp("programs")
    targets = []
    for number, text in enumerate(PROGRAMS.values()):
        file = folder / f"program_{number}.py"
        file.write_text(HEAD + text)
        targets.append((f"{file}:make" if "def make()" in text else str(file), {}))
    found = {}
    for name, observation in zip(PROGRAMS, observe_all(targets), strict=True):
        matched = rules.matched(observation)
        every = [each.finding for each in matched]
        known, stops = causes.explain(matched), causes.stopped(matched)
        found[name] = CauseTree(causes.linked(every, known, stops))
    return found


def only(tree: CauseTree, code: str) -> Finding:
    [cause] = [f for f in tree.causes if f.code.startswith(code)]
    return cause


Trees = dict[str, CauseTree]


def test_a_recompile_behind_a_break_follows_from_it(trees: Trees) -> None:
    tree = trees["recompile behind a break"]
    effects = tree.effects(only(tree, "GB1"))
    assert effects and {f.kind for f in effects} == {"recompile"}
    assert all(f.certainty == "likely" for f in effects)
    # What has a reason of its own is a cause: here, the input's own change.
    assert only(tree, "RC201").cause_of == ()
    assert only(trees["attribute that changes"], "RC213").cause_of == ()
    assert trees["disabled"].total == 0


def test_a_comprehension_that_runs_alone_follows_from_the_skip(trees: Trees) -> None:
    tree = trees["comprehension alone"]
    [cause] = tree.causes
    assert "print" in (cause.source or "")
    # Nothing is compiled since the whole function is skipped: that is no other finding.
    assert not [f for f in (cause, *tree.effects(cause)) if f.code == "NC805"]
    assert cause.stops == ("make.step",) and "(NC805)" in cause.evidence[-1]
    # Since 3.12 a comprehension is part of its function, and is skipped with it.
    own = {"GB101"} if sys.version_info < (3, 12) else set()
    broken = trees["comprehension with a break"]
    assert {f.code for f in broken.causes} == {"GB104", *own}


def test_breaks_of_one_expression_are_one_finding(trees: Trees) -> None:
    tree = trees["one expression"]
    [cause] = tree.causes
    assert (cause.code, cause.line) == ("GB104", 7) and not tree.effects(cause)
    assert "(GB101)" in cause.evidence[-1]
    two = trees["two statements"]
    assert {(f.code, f.line) for f in two.causes} == {("GB101", 7), ("GB104", 8)}


def test_one_change_of_one_input_is_one_cause(trees: Trees) -> None:
    tree = trees["one input"]
    [cause] = tree.causes
    [effect] = tree.effects(cause)
    assert effect.cause_of == (cause.identity,)
    two = trees["two inputs"]
    assert len(two.causes) == 2 and two.total == 0


def test_the_limit_follows_from_the_recompiles(trees: Trees) -> None:
    tree = trees["limit"]
    [cause] = tree.causes
    assert cause.kind == "recompile"
    assert [f.code for f in tree.effects(cause)] == ["RC290"]
    assert tree.severity(cause) == "high"


def test_a_break_that_stops_the_whole_function_is_fixed_first() -> None:
    dear = replace(ITEM, code="GB104", cost_us=900.0)
    whole = replace(ITEM, kind="skipped_frame", line=9, cost_us=None, stops=("Net",))
    assert causes.ranked([dear, whole]) == [whole, dear]
    assert causes.ranked([whole, replace(dear, stops=("Net",))])[0].code == "GB104"


# -- links between findings ------------------------------------------------------------

CAUSE = replace(ITEM, cost_us=None, severity="low")
SIZE = replace(CHANGE, count=2)


def explained(*findings: Finding) -> list[Finding]:
    known = {SIZE.identity: causes.Explanation((CAUSE.identity,), "it is apart")}
    return causes.linked(findings, known)


def test_links_have_both_ends() -> None:
    first, second = explained(SIZE, CAUSE)
    assert first.consequences == (SIZE.identity,)
    assert second.cause_of == (CAUSE.identity,)
    assert [Finding.from_json(f.to_json()) for f in (first, second)] == [first, second]


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
    tree = CauseTree(explained(replace(SIZE, severity="high"), CAUSE))
    assert tree.causes[0].severity == CAUSE.severity == "low"
    assert tree.severity(tree.causes[0]) == "high"


def test_an_effect_has_the_remedy_of_its_causes() -> None:
    """All of them, down to those that have the data; none if one has only words."""
    edit, words = Remedy("edit", title="x", tier="unsafe"), Remedy("none", why="x")
    cause = replace(ITEM, remedy=edit)
    other = replace(ITEM, code="GB102", remedy=Remedy("setting"))
    effect = replace(CHANGE, remedy=words, cause_of=(cause.identity,))
    last = replace(CHANGE, code="RC210", remedy=words, cause_of=(effect.identity,))
    both = replace(last, code="RC211", cause_of=(cause.identity, other.identity))

    def given(*findings: Finding) -> Finding:
        return causes.with_remedies(findings)[-1]

    for found in (given(cause, effect), given(cause, effect, last)):
        assert (found.remedy.kind, found.remedy.tier) == ("edit", "unsafe")
        assert found.remedy.of == (cause.identity,)
        assert found.fix == found.remedy.text and "model.py:42" in found.fix
    assert given(cause, other, both).remedy.of == (cause.identity, other.identity)
    line = Replacement("model.py", 4, (), ("    @on_host\n", "    def read(x):\n"))
    split = replace(cause, remedy=replace(edit, replacements=(line,)))
    assert given(split, effect) == effect
    own = replace(effect, remedy=Remedy("setting"))
    unknown = replace(cause, remedy=words)
    for findings in ((cause, own), (unknown, effect), (cause, both), (cause,)):
        assert given(*findings) == findings[-1]
