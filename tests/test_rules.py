"""Every rule finds its triggers, and stays silent on their clean twins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.specifiers import SpecifierSet

from torchproof.checking import rules, suspicions
from torchproof.checking.rules.breaks import GraphBreak
from torchproof.checking.rules.rule import SECTIONS, Match, Rule
from torchproof.checking.static.flow import Flow
from torchproof.observe.guard_failures import Guard
from torchproof.observe.trace_log import read_reason
from torchproof.records.run import Event, Finding, Frame, Observation

FOLDER = Path(__file__).parent / "rules"
# What shows only when it is measured has tests of its own.
MEASURED = ("NM", "SP", "CG", "CE705")
PROGRAMS = sorted(
    path for path in FOLDER.glob("*/*.py") if not path.parent.name.startswith(MEASURED)
)
BREAKS = {"graph_break", "skipped_frame"}
# The keys of one entry of EXPECT: CONTRIBUTING.md says what each means.
REQUIRED = {"code", "kind", "line", "fix"}
OPTIONAL = {"severity", "status", "torch", "holder"}
# One trigger and one clean twin of each rule run each time; the others are slow tests.
FIRST = {"bad", "good"}
VARIANT = [pytest.mark.slow, pytest.mark.variant]
# RC299 takes the guards that no other rule knows. NC806 needs a script, AD101 and AD102
# need a GPU. RK rules need several ranks: tests/ranks has their cases.
WITHOUT_PROGRAMS = {"RC299", "NC806", "AD101", "AD102"}
WITHOUT_PROGRAMS |= {rule.code for rule in rules.RULES if rule.code.startswith("RK")}


def settings(program: Path) -> dict[str, Any]:
    """The constants of a program, read without running it."""
    found: dict[str, Any] = {}
    for node in ast.parse(program.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in {"EXPECT", "COMPILE", "AS_WRITTEN"}:
                found[name] = ast.literal_eval(node.value)
    return found


def check(program: Path, observe: Any) -> list[Finding]:
    told = settings(program)
    observation = observe(
        f"{program}:make",
        compile=told.get("COMPILE", {}),
        as_written=told.get("AS_WRITTEN", False),
    )
    assert observation.error is None
    return rules.check(observation)


def describe(findings: list[Finding]) -> str:
    return "\n".join(
        f"{f.code} {f.kind} {f.severity} {f.status} {f.line}: {f.message} | {f.fix}"
        for f in findings
    )


def fits(finding: Finding, wanted: dict[str, Any], lines: list[str]) -> bool:
    """Whether a finding is the one a program announces."""
    kinds = BREAKS if wanted["kind"] in BREAKS else {wanted["kind"]}
    if finding.code != wanted["code"] or finding.kind not in kinds:
        return False
    if wanted["line"] is not None:
        line = lines[finding.line - 1] if finding.line else ""
        if wanted["line"] not in line and finding.kind not in {
            "recompile",
            "no_op",
            "recompile_limit",
        }:
            return False
    if not any(word.lower() in finding.fix.lower() for word in wanted["fix"]):
        return False
    return all(
        getattr(finding, key) == wanted[key]
        for key in ("severity", "status")
        if key in wanted
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            path,
            id=f"{path.parent.name}-{path.stem}",
            marks=[] if path.stem in FIRST else VARIANT,
        )
        for path in PROGRAMS
    ],
)
def test_program_gets_its_diagnosis(program: Path, observe: Any) -> None:
    assert not malformed(program)
    expected = [w for w in settings(program)["EXPECT"] if _applies(w)]
    if settings(program)["EXPECT"] and not expected:
        pytest.skip(f"not a fault on torch {torch.__version__}")
    findings = check(program, observe)
    lines = program.read_text().splitlines()
    for wanted in expected:
        assert any(fits(f, wanted, lines) for f in findings), (
            f"expected {wanted}\ngot:\n{describe(findings)}\n"
            "If another code took it: the first rule of a list that matches wins."
        )
    if settings(program)["EXPECT"] == []:
        loud = [f for f in findings if f.severity != "low"]
        assert not loud, f"false alarm:\n{describe(loud)}"


def malformed(program: Path) -> str:
    """What is wrong with EXPECT, for the author of a new program; empty: nothing."""
    where = f"{program.parent.name}/{program.name}"
    expected = settings(program).get("EXPECT")
    if not isinstance(expected, list):
        return f"{where}: EXPECT must be a list of literals ([] in a clean twin)"
    for entry in expected:
        if missing := REQUIRED - set(entry):
            return f"{where}: an entry of EXPECT lacks {sorted(missing)}"
        if unknown := set(entry) - REQUIRED - OPTIONAL:
            return f"{where}: EXPECT has unknown keys {sorted(unknown)}"
        if not (isinstance(entry["fix"], list) and entry["fix"]):
            return f"{where}: `fix` must be a list of words, not empty"
    return ""


def test_every_program_says_well_what_it_expects() -> None:
    assert not [text for path in FOLDER.glob("*/*.py") if (text := malformed(path))]


def test_a_wrong_entry_is_named(tmp_path: Path) -> None:
    program = tmp_path / "bad.py"
    program.write_text("EXPECT = [{'code': 'GB101', 'line': 'x', 'fix': ['y']}]")
    assert "kind" in malformed(program)
    entry = "'code': 'GB101', 'kind': 'graph_break', 'line': 'x'"
    program.write_text(f"EXPECT = [{{{entry}, 'fix': ['y'], 'sevrity': 'low'}}]")
    assert "sevrity" in malformed(program)
    program.write_text(f"EXPECT = [{{{entry}, 'fix': 'y'}}]")
    assert "`fix`" in malformed(program)
    program.write_text("")
    assert "EXPECT" in malformed(program)


def test_every_rule_about_a_run_has_a_trigger_and_a_clean_twin() -> None:
    for rule in rules.RULES:
        if rule.code in WITHOUT_PROGRAMS or rule.parts != ("breaks",):
            continue
        for name in ("bad.py", "good.py"):
            path = FOLDER / rule.code / name
            assert path.exists(), f"write tests/rules/{rule.code}/{name}"
        entries = settings(FOLDER / rule.code / "bad.py")["EXPECT"]
        assert rule.code in {entry["code"] for entry in entries}
        assert settings(FOLDER / rule.code / "good.py")["EXPECT"] == []


def _applies(wanted: dict[str, Any]) -> bool:
    return SpecifierSet(wanted.get("torch", "")).contains(
        str(torch.__version__).split("+")[0]
    )


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda r: r.code)
def test_rule_is_documented(rule: Rule) -> None:
    text = rule.documentation()
    assert rule.summary().endswith(".")
    for section in SECTIONS:
        assert f"## {section}" in text, f"{rule.code} has no section {section}"


def test_every_rule_is_listed_once() -> None:
    def concrete(cls: type[Rule]) -> set[type[Rule]]:
        """A class with a code, or without subclasses; the others are base classes."""
        below = {leaf for sub in cls.__subclasses__() for leaf in concrete(sub)}
        return below | {cls} if "code" in vars(cls) or not below else below

    unlisted = concrete(Rule) - {type(rule) for rule in rules.RULES} - {Weaving}
    assert not unlisted, f"{unlisted}: list it in checking/rules/__init__.py"
    codes = [rule.code for rule in rules.RULES]
    assert len(codes) == len(set(codes))


class Weaving(GraphBreak):
    """Something is woven.

    ## Why
    Dynamo does not weave.
    """

    code = "GB190"
    types = ("Unheard of",)
    cause_text = "`{at.expression}` weaves"
    fix_text = "knit instead of `{at.expression}`"
    nodes = (ast.Call,)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        if isinstance(node, ast.Call) and at.dotted(node.func) == "weave":
            yield Match(node)


def test_one_class_is_a_rule_for_runs_and_for_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_IN_ORDER", (Weaving(), *rules._IN_ORDER))
    here = Frame("/home/me/model.py", 7, "forward", "y = weave(x)", (4, 12))
    reason = read_reason("Unheard of\n  Explanation: Dynamo cannot weave.")
    event = Event("graph_break", "0/0", (here,), here, {**reason, "skips": False})
    [found] = rules.check(Observation((event,), {}))
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
    reason = {**read_reason("Unheard of"), "skips": False}
    for inner, codes in (((helper,), []), ((layer,), ["GB199"])):
        event = Event("graph_break", "0/0", inner, inner[0], reason, callers=(ddp,))
        found = rules.check(Observation((event,), {}))
        assert [each.code for each in found] == codes


def test_a_break_nobody_has_met_is_placed_and_explained() -> None:
    here = Frame("/home/me/model.py", 7, "forward", "y = weave(x)", (4, 12))
    told = "Unheard of\n  Explanation: Dynamo cannot weave.\n  Hint: Use knit."
    event = Event(
        "graph_break",
        "0/0",
        (here,),
        Frame("/home/me/model.py", 3, "forward"),
        {**read_reason(told), "skips": False},
    )
    [found] = rules.check(Observation((event,), {}))
    assert (found.code, found.kind, found.line) == ("GB199", "graph_break", 7)
    assert "`weave(x)`" in found.message
    assert "weave" in found.cause and "Use knit" in found.fix


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
    event = Event("recompile", "0/1", (), where, {"guard": guard})
    [found] = rules.check(Observation((event,), {}))
    assert (found.file, found.line, found.owner) == (where.file, 40, "library")
