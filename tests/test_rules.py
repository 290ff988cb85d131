"""Every rule finds its triggers, and stays silent on their clean twins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rule_programs import FOLDER, marked, programs, too_long

from torchproof.checking import rules, suspicions
from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import GraphBreak
from torchproof.checking.rules.rule import SECTIONS, Match, Rule
from torchproof.checking.static.flow import Flow
from torchproof.cli import main
from torchproof.observe.trace_log import read_reason
from torchproof.records import (
    BreakEvent,
    Guard,
    RecompileEvent,
    UserError,
)
from torchproof.records.events import Observation
from torchproof.records.run import Finding, Frame

FILES = sorted(FOLDER.glob("*.py"))
# What shows only when it is measured, or in a CUDA graph, has tests of its own.
MEASURED = ("NM", "SP", "CG", "CE705")
PROGRAMS = [each for each in programs() if not each.rule.startswith(MEASURED)]
# RC299 takes the guards that no other rule knows. NC806 needs a script, AD101 and AD102
# need a GPU. RK rules need several ranks: tests/ranks has their cases.
WITHOUT_PROGRAMS = {"RC299", "NC806", "AD101", "AD102"}
WITHOUT_PROGRAMS |= {rule.code for rule in rules.RULES if rule.code.startswith("RK")}


def describe(findings: list[Finding]) -> str:
    return "\n".join(f"{f.code} {f.file}:{f.line}: {f.message}" for f in findings)


@pytest.mark.parametrize("family", sorted({each.rule[:4] for each in PROGRAMS}))
def test_programs_get_their_diagnosis(family: str, observe_all: Any) -> None:
    """All programs of up to ten rules, one after the other in one process."""
    own = [each for each in PROGRAMS if each.rule.startswith(family)]
    observed = observe_all([(each.target, each.options) for each in own])
    wrong = []
    for program, observation in zip(own, observed, strict=True):
        findings = rules.check(observation)
        files = {Path(f.file or "").name for f in findings} - {program.path.name}
        found = {(f.code, f.line) for f in findings}
        wrong += too_long(findings)
        if observation.error or files or found != program.expected:
            wrong.append(f"{program.name} {observation.error}\n{describe(findings)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reading_gives_the_marked_lines_and_no_other(path: Path) -> None:
    found = suspicions.read([path]).suspicions
    assert {(s.finding.code, s.finding.line) for s in found} == marked(path, "read:")
    assert not too_long(s.finding for s in found)


def test_every_rule_has_a_trigger_and_a_clean_twin() -> None:
    """functions_good.py and modules_good.py are the twins of what is read."""
    read, shown = (
        {code for path in FILES for code, _ in marked(path, own)}
        for own in ("read:", "run:")
    )
    for rule in rules.RULES:
        looks = type(rule).look is not Rule.look or type(rule).read is not Rule.read
        assert rule.code in read or not looks, rule.code
        if rule.code in WITHOUT_PROGRAMS or rule.parts != ("breaks",):
            continue
        if not rule.code.startswith(MEASURED):
            assert rule.code in shown, rule.code
            twins = {each.factory for each in programs(f"{rule.code}*")}
            assert rule.code in read or "good" in twins, rule.code


def test_every_rule_is_listed_once() -> None:
    def concrete(cls: type[Rule]) -> set[type[Rule]]:
        """A class with a code, or without subclasses; the others are base classes."""
        below = {leaf for sub in cls.__subclasses__() for leaf in concrete(sub)}
        return below | {cls} if "code" in vars(cls) or not below else below

    unlisted = concrete(Rule) - {type(rule) for rule in rules.RULES} - {Weaving}
    assert not unlisted, (
        f"{unlisted}: list it or its module in checking/rules/__init__.py"
    )
    codes = [rule.code for rule in rules.RULES]
    assert len(codes) == len(set(codes))


HERE = Frame("/home/me/model.py", 7, "forward", "y = weave(x)", (4, 12))


def broken(
    text: str,
    here: Frame = HERE,
    *,
    function: Frame | None = None,
    callers: tuple[Frame, ...] = (),
    torch: str | None = None,
    gb_id: str | None = None,
    settings: dict[str, Any] | None = None,
) -> list[Finding]:
    """The findings of a graph break that torch explains with this text."""
    reason = read_reason(text)
    event = BreakEvent(
        compile_id="0/0",
        frames=(here,),
        function=function or here,
        callers=callers,
        reason=replace(reason, gb_id=gb_id or reason.gb_id),
    )
    environment = {"torch": torch} if torch else {}
    return rules.check(Observation((event,), environment, settings=settings or {}))


class Weaving(GraphBreak):
    """Something is woven.

    ## Why
    Dynamo does not weave.
    """

    code = "GB190"
    causes = frozenset({"GB0190X"})
    cause_text = "`{at.expression}` weaves"
    advice_text = "knit instead of `{at.expression}`"
    nodes = (ast.Call,)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        if isinstance(node, ast.Call) and at.dotted(node.func) == "weave":
            yield Match(node)


def test_one_class_is_a_rule_for_runs_and_for_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_IN_ORDER", (Weaving(), *rules._IN_ORDER))
    [found] = broken("Unheard of\n  Explanation: Dynamo cannot weave.", gb_id="GB0190X")
    assert (found.code, found.cause) == ("GB190", "`weave(x)` weaves")

    monkeypatch.setitem(suspicions._BY_NODE, ast.Call, [Weaving()])
    program = tmp_path / "model.py"
    program.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return weave(x)\n"
    )
    [suspected] = suspicions.read([program]).suspicions
    assert (suspected.finding.code, suspected.finding.line) == ("GB190", 4)
    assert suspected.finding.cause == found.cause
    assert suspected.finding.fix == found.fix


def test_breaks_that_ddp_intends_are_no_findings() -> None:
    torch = "/lib/python3.11/site-packages/torch"
    ddp = Frame(f"{torch}/nn/parallel/distributed.py", 1700, "_run_ddp_forward")
    helper = Frame("/lib/python3.11/contextlib.py", 301, "helper", "return func()")
    layer = Frame(f"{torch}/nn/modules/linear.py", 130, "forward", "weave(x)")
    for inner, codes in ((helper, []), (layer, ["GB199"])):
        found = broken("Unheard of", inner, callers=(ddp,))
        assert [each.code for each in found] == codes


def test_a_break_nobody_has_met_is_placed_and_explained() -> None:
    text = "Unheard of\n  Explanation: Dynamo cannot weave.\n  Hint: Use knit."
    [found] = broken(text, function=replace(HERE, line=3))
    assert (found.code, found.kind, found.line) == ("GB199", "graph_break", 7)
    assert "`weave(x)`" in found.message
    assert "weave" in found.cause and "knit" in found.fix


def test_a_callable_object_is_the_place(tmp_path: Path, observe: Any) -> None:
    program = tmp_path / "step.py"
    program.write_text(
        "import torch\n"
        "class Step:\n"
        "    def __call__(self, x):\n"
        "        return x * 2\n"
        "def make():\n"
        "    return Step(), [(torch.randn(n),) for n in (2, 3, 4)]\n"
    )
    [found] = rules.check(observe(f"{program}:make"))
    assert (found.code, found.line, found.owner) == ("RC201", 3, "user")
    assert "Step.__call__" in found.message


def test_a_recompile_in_library_code_is_placed_there() -> None:
    where = Frame("/venv/lib/python3.11/site-packages/zoo/llama.py", 40, "forward")
    guard = Guard("size", "kwargs['ids']", "size mismatch", 0, "2", "3")
    event = RecompileEvent(compile_id="0/1", function=where, guard=guard)
    [found] = rules.check(Observation((event,), {}))
    assert (found.file, found.line, found.owner) == (where.file, 40, "library")


BREAKS = [rule for rule in rules.RULES if isinstance(rule, GraphBreak)]


def test_each_kind_of_break_belongs_to_one_rule_at_most() -> None:
    every = [gb_id for rule in BREAKS for gb_id in rule.causes]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("gb_id", "code"),
    [
        ("GB0007", "GB105"),
        ("GB0014", "GB108"),
        ("GB0033", "GB101"),
        ("GB0036", "GB103"),
        ("GB0059", "GB117"),
        ("GB0098", "GB106"),
        ("GB0124", "GB101"),
        ("GB0142", "GB111"),
        ("GB0170", "GB102"),
        ("GB0034", "GB102"),
        ("GB9999", "GB199"),
    ],
)
def test_a_break_is_known_by_its_id(gb_id: str, code: str) -> None:
    assert [f.code for f in broken("As torch names it", gb_id=gb_id)] == [code]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Tensor.tolist() with non-integer tensor", "GB101"),
        ("assert with non-string message", "GB102"),
    ],
)
def test_without_an_id_a_break_is_known_by_its_name(name: str, code: str) -> None:
    assert [f.code for f in broken(name)] == [code]


def test_a_setting_in_force_is_no_remedy() -> None:
    here = replace(HERE, code="torch.autograd.grad(y, x)", columns=None)
    setting = {"torch._dynamo.config.trace_autograd_ops": True}
    for settings, kind in ((None, "setting"), (setting, "none")):
        [found] = broken("autograd.grad", here, gb_id="GB9186", settings=settings)
        assert found.remedy is not None and found.remedy.kind == kind


@pytest.mark.parametrize(("torch", "named"), [("2.13.0+cpu", True), ("2.15.0", False)])
def test_the_remedy_is_the_torch_that_traces_this(torch: str, named: bool) -> None:
    here = replace(HERE, code="states.rotate(1)", columns=(0, 16))
    [found] = broken("Unsupported deque", here, torch=torch, gb_id="GB0097")
    assert found.code == "GB117" and found.remedy is not None
    assert (found.remedy.version == "2.14.1") is named
    assert "\n\n## Versions\n" in rules.by_code("GB117").documentation()


# -- what a rule says of itself --------------------------------------------------------

KNOWN = {page for page in vars(torch_pages).values() if isinstance(page, str)}
HOMES = ("https://docs.pytorch.org/docs/stable/", "https://docs.pytorch.org/tutorials/")


def test_a_retired_code_may_be_ignored_and_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {rule.code for rule in rules.RULES}
    for code, why in rules.RETIRED.items():
        assert code not in known and why.endswith(".")
        assert rules.select([], [], [code.lower(), code[:4]]) == []
        assert rules.select([], [code, "GB"], []) == []  # it is selected beside others
        assert main(["rule", code.lower()]) == 0
        assert capsys.readouterr().out == f"{code} was retired: {why}\n"
        with pytest.raises(UserError, match=f"{code} was retired"):
            rules.select([], [code], [])


def test_every_rule_has_its_sections_and_refers_to_a_page() -> None:
    for rule in rules.RULES:
        assert rule.summary().endswith("."), rule.code
        for name in SECTIONS:
            text = rule.text().section(name)
            assert text and "## " not in text, (rule.code, name)
        for name in ("Bad", "Good"):
            assert not rule.text().section(name).startswith(" "), (rule.code, name)
        assert rule.text().section("Elsewhere") == ""
        page = rule.reference
        assert page in KNOWN and page.endswith(".html"), rule.code
        assert page.startswith(HOMES), rule.code
        assert rule.documentation().endswith(f"\n\n## Reference\n{page}"), rule.code


def test_no_page_is_kept_that_nothing_refers_to() -> None:
    used = {rule.reference for rule in rules.RULES}
    kept = {page for page in KNOWN if page.endswith(".html")}
    assert kept == used


def test_examples_are_python_with_the_indent_taken_off() -> None:
    good = rules.by_code("GB102").text().section("Good")
    assert ast.parse(good).body and "torch.where" in good
