"""Drafts of a check, applied to the letter, cure their findings and keep outputs."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rule_programs
from check_runs import ITEM, check
from installed_library import install, script
from sites import site

from torchproof.checking import checker, rules, suspicions
from torchproof.checking.join import Joined
from torchproof.fixing import drafts
from torchproof.fixing.edits import Edit, applied
from torchproof.fixing.proof import Located
from torchproof.fixing.proposals import Refusal, Sources, proposals
from torchproof.fixing.rewrites import Refused, compiler_settings
from torchproof.records import (
    BreakEvent,
    Finding,
    GraphEvent,
    Observation,
    Remedy,
    Replacement,
    Setting,
    WrapperEvent,
    blame,
    shown,
)
from torchproof.records.frame import Frame

HEAD = "import torch\nfrom torch import nn\n"
TAIL = "\nopen(__file__ + '.out', 'w').write(repr(out))\n"
LIBRARY = """\
import torch


def gated(x):
    if x.sum() > 0:
        return x + 1
    return x - 1
"""
# Each program, and the code of its finding.
PROGRAMS = {
    "edit": (
        "GB102",
        """
        @torch.compile(backend="eager")
        def step(x):
            # doubled where positive
            if x.sum() > 0:
                x = x * 2
            return x + 1
        out = step(torch.ones(3)), step(-torch.ones(3))
        """,
    ),
    "patch": (
        "GB102",
        """
        @torch.compile(backend="eager")
        def step(x):
            return fakelib.gated(x) * 2
        out = step(torch.ones(3)), step(-torch.ones(3))
        """,
    ),
    "line of a setting": (
        "GB101",
        """
        @torch.compile(backend="eager")
        def step(x):
            return x * x.max().item()
        out = step(torch.ones(3))
        """,
    ),
    "argument of torch.compile": (
        "RC201",
        """
        step = torch.compile(
            torch.relu,
            backend="eager",
        )
        out = [step(torch.ones(n) * 2) for n in (2, 3, 4)]
        """,
    ),
    "line of a mark": (
        "RC201",
        """
        @torch.compile(backend="eager")
        def step(x):
            return x.relu() + 1
        out = []
        for n in (2, 3, 4):
            batch = {"x": torch.ones(n)}
            # the call
            out.append(step(batch["x"]))
        """,
    ),
}
KINDS = ("edit", "patch", "setting", "setting", "mark")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    files = {}
    for name, (_, body) in PROGRAMS.items():
        library = install(tmp_path_factory.mktemp("program"), LIBRARY)
        body = textwrap.dedent(body)
        files[name] = script(library, f"from torch import nn\n{body}{TAIL}")
    return files


def outputs(files: dict[str, Path]) -> list[str]:
    return [Path(f"{file}.out").read_text() for file in files.values()]


def draft_of(observation: Observation, name: str) -> Finding:
    """The finding that a program is about, with its draft."""
    matched = rules.matched(observation)
    found = drafts.drafted([each.finding for each in matched], matched)
    return next(each for each in found if each.code == PROGRAMS[name][0])


def test_drafts_cure_their_findings(written: dict[str, Path], observe_all: Any) -> None:
    targets = [(str(file), {}) for file in written.values()]
    before = observe_all(targets)
    expected = outputs(written)
    found = dict(zip(written, map(draft_of, before, written), strict=True))
    for (name, finding), kind in zip(found.items(), KINDS, strict=True):
        remedy = finding.remedy
        assert remedy is not None and remedy.replacements, name
        assert (remedy.kind, remedy.tier) == (kind, "safe")
        assert finding.fix == remedy.text and len(finding.fix) <= 160
        for file in {Path(change.file) for change in remedy.replacements}:
            assert ("site-packages" in str(file)) == (kind == "patch")
            assert all(change.at == change.line for change in remedy.replacements)
            file.write_text(applied(file.read_text(), remedy.replacements))
    blame.forget()
    after = observe_all(targets)
    assert outputs(written) == expected
    for (name, finding), seen in zip(found.items(), after, strict=True):
        left = {each.identity for each in rules.check(seen) if each.status == "open"}
        assert finding.identity not in left, name


def test_a_target_that_torchproof_compiles_has_no_line_for_a_setting(
    tmp_path: Path, observe: Any
) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        f"{HEAD}def step(x):\n    return x * x.max().item()\n"
        "def make():\n    return step, [(torch.ones(3),)]\n"
    )
    matched = rules.matched(observe(f"{file}:make"))
    found = drafts.drafted([each.finding for each in matched], matched)
    settings = [each.remedy for each in found if each.code == "GB101"]
    assert [each.kind for each in settings if each] == ["setting"]
    assert not any(each.replacements for each in settings if each)


# -- lines of the program --------------------------------------------------------------

DYNAMIC = Setting("compile.dynamic", True)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("f = torch.compile(g)", "f = torch.compile(g, dynamic=True)"),
        ("f = torch.compile(g, dynamic=False)", "f = torch.compile(g, dynamic=True)"),
        (
            "f = torch.compile(\n    g,\n)",
            "f = torch.compile(\n    g,\n    dynamic=True,\n)",
        ),
        (
            "f = torch.compile(\n    g,\n    mode=m\n)",
            "f = torch.compile(\n    g,\n    dynamic=True,\n    mode=m\n)",
        ),
        (
            "f = torch.compile(  # why\n    g\n)",
            "f = torch.compile(  # why\n    g,\n    dynamic=True\n)",
        ),
        (
            "f = torch.compile(\n    mode=m,  # now\n)",
            "f = torch.compile(\n    dynamic=True,\n    mode=m,  # now\n)",
        ),
        ("f = torch.compile(g, mode=m)", "f = torch.compile(g, mode=m, dynamic=True)"),
        ("model.compile()", "model.compile(dynamic=True)"),
        (
            "@torch.compile\ndef f(x): ...",
            "@torch.compile(dynamic=True)\ndef f(x): ...",
        ),
        ("f = torch.compile(g, **options)", None),
        ("f = partial(torch.compile, mode=m)", None),
        ("f, h = torch.compile(g), torch.compile(k)", None),
    ],
)
def test_argument_of_torch_compile(code: str, expected: str | None) -> None:
    first, *rest = code.split("\n")
    place = site("\n".join([f"{first}  # <-", *rest]))
    if expected is None:
        with pytest.raises(Refused):
            compiler_settings.with_setting(place, DYNAMIC)
    else:
        assert compiler_settings.with_setting(place, DYNAMIC) == f"{expected}\n"


def test_setting_follows_the_imports_and_has_those_it_needs() -> None:
    warn = Setting("dynamo.reorderable_logging_functions", "warnings.warn", "warnings")
    text = compiler_settings.with_setting(
        site('"""Doc."""\n\nfrom torch import nn\nnet = nn.Linear(1, 1)  # <-\n'), warn
    )
    assert text == (
        '"""Doc."""\n\nfrom torch import nn\nimport torch\nimport warnings\n'
        f"{warn.lines[-1]}\nnet = nn.Linear(1, 1)\n"
    )


def test_setting_of_a_module_in_a_package_runs_alone() -> None:
    name = "dynamo.ignore_logging_functions"
    each = Setting(name, "xml.dom.minidom.parse", "xml.dom.minidom")
    program = compiler_settings.with_setting(site("net = None  # <-\n"), each)
    for text in (f"import torch; {each.code}", program):
        done = subprocess.run([sys.executable, "-c", text], check=False)
        assert done.returncode == 0


@pytest.mark.parametrize(
    ("compiled", "expected"), [("ab", "b"), ("b", "b"), ("a", "a"), ("ac", None)]
)
def test_a_line_goes_into_the_file_of_the_finding(
    compiled: str, expected: str | None, tmp_path: Path
) -> None:
    """Of wrappers that do not show which of them the finding is about."""
    paths = {name: str(tmp_path / f"{name}.py") for name in "abc"}
    wrappers = [
        WrapperEvent(frames=(Frame(paths[name], 1, "<module>", "f = compile(g)"),))
        for name in compiled
    ]
    remedy = Remedy("setting", settings=(Setting("dynamo.capture_scalar_outputs", 1),))
    event = BreakEvent(function=Frame(paths["b"], 5, "g", ""))
    place = drafts._place_of_compile(wrappers, event, remedy, shown(paths["b"]))
    assert (place and place.file) == paths.get(expected or "")


# -- any source ------------------------------------------------------------------------

FILES = sorted(rule_programs.FOLDER.glob("*.py"))


def test_drafts_of_source_are_python() -> None:
    """Of what is read in the programs of the rules, and of any rule at any line."""
    chosen, sources = random.Random(0), Sources()
    codes = [rule.code for rule in rules.RULES if rule.rewrites]
    drafted = 0
    for file in FILES:
        found = [each.finding for each in suspicions.read([file]).suspicions]
        lines = file.read_text().splitlines()
        for number in range(1 + chosen.randrange(60), len(lines) + 1, 60):
            text, code = lines[number - 1], chosen.choice(codes)
            place = {"file": str(file), "line": number, "source": text}
            found.append(Finding(code, "hazard", "low", "", "", "", **place))
        for each in found:
            for proposal in proposals(Located(each, ()), drafts._UNCHANGED, sources):
                if isinstance(proposal, Refusal):
                    assert "the rewrite failed" not in proposal.why
                elif proposal.replacements:
                    text = applied(file.read_text(), proposal.replacements)
                    compile(text, str(file), "exec")
                    drafted += 1
    assert drafted


def test_a_draft_that_fails_keeps_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(drafts, "proposals", fail)
    found = Finding("GB102", "graph_break", "high", "", "", "advice", "a.py", 1)
    assert drafts.drafted([found], []) == [found]


@pytest.mark.parametrize(
    ("error", "ending"),
    [(ImportError("libcst"), "finished"), (KeyboardInterrupt(), "interrupted")],
)
def test_a_check_keeps_its_findings_without_drafts(
    error: BaseException, ending: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    judged = checker.Judged([], Joined(()))
    run = checker.with_drafts(check(ITEM), judged, fail)  # type: ignore[arg-type]
    assert (run.findings, run.ending) == ((ITEM,), ending)


def test_an_edit_that_the_rule_knows_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("a\nb\nc\n")
    edit = Replacement(str(tmp_path / "model.py"), 2, ("b\n",), ("x\n", "b\n"))
    known = Remedy("edit", (edit,), title="write x")
    found = Finding("GB102", "graph_break", "high", "", "", known.text, "model.py", 2)
    [drafted] = drafts.drafted([replace(found, remedy=known)], [])
    shown = Replacement("model.py", 2, (), ("x\n",), at=2, below=("a\n",))
    assert drafted.remedy == replace(known, replacements=(shown,))


def test_a_file_that_has_changed_since_gets_no_edit(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def f(x):\n    x += 1\n    return x\n")
    assert drafts._is_current(Frame(str(file), 2, "f", "x += 1"))
    assert not drafts._is_current(Frame(str(file), 2, "f", "if x.sum() > 0:"))


def test_an_edit_that_helps_with_some_values_only_is_left_to_fix(
    tmp_path: Path,
) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        f"{HEAD}class Net(nn.Module):\n    def forward(self, x):\n"
        "        draw = torch.rand([])\n        if draw < self.rate:\n"
        "            x = x + self.layer(x)\n        return x\n"
    )
    source = "        if draw < self.rate:"
    found = Finding("GB102", "graph_break", "high", "", "", "", str(file), 6)
    found = replace(found, source=source)
    edits = [*proposals(Located(found, ()), drafts._UNCHANGED, Sources())]
    assert any(isinstance(each, Edit) and each.needs_run for each in edits)
    [drafted] = drafts.drafted([found], [])
    assert drafted.remedy is None or drafted.remedy.tier == "unsafe"


def test_an_edit_that_does_not_fit_becomes_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or stays as the rule has it, where there are too many findings."""
    file = tmp_path / "model.py"
    file.write_bytes(b"a\r\nb\r\n")
    edit = Replacement(str(file), 2, ("b\n",), ("b\n", "x\n"))
    known = Remedy("edit", (edit,), title="write x")
    found = Finding("GB102", "graph_break", "high", "", "", known.text, str(file), 2)
    found = replace(found, remedy=known)
    [drafted] = drafts.drafted([found], [])
    assert drafted.remedy == Remedy("none", why="write x")
    monkeypatch.setattr(drafts, "_FINDINGS", 0)
    [drafted] = drafts.drafted([found], [])
    assert drafted.remedy == Remedy("none", why="write x")
    file.write_bytes(b"a\nb\n")
    [drafted] = drafts.drafted([found], [])
    assert drafted.remedy is not None and drafted.remedy.replacements == (
        replace(edit, file=shown(edit.file), at=2),
    )


TWO = """\
import torch


@torch.compile(backend="eager")
def encode(x):
    return x + 1


@torch.compile(backend="eager")
def decode(x):
    y = x * 2
    print("value", y.sum())
    return y + 1
"""


def test_an_argument_is_for_the_function_that_is_resumed(tmp_path: Path) -> None:
    """Although the call of another one comes first in the line."""
    file = str(tmp_path / "two.py")
    Path(file).write_text(TWO)
    resumed = Frame(file, 12, "torch_dynamo_resume_in_decode_at_12")
    encode, decode = Frame(file, 4, "encode"), Frame(file, 9, "decode")
    wrappers = [
        WrapperEvent(frames=(replace(each, function="<module>"),), function=each)
        for each in (encode, decode)
    ]
    remedy = Remedy("setting", settings=(DYNAMIC,))
    for function, line in ((resumed, 9), (encode, 4)):
        event = GraphEvent(function=function, entry=encode)
        place = drafts._place_of_compile(wrappers, event, remedy, None)
        assert place is not None and place.line == line


def test_an_earlier_line_of_a_resumed_function_is_not_edited(tmp_path: Path) -> None:
    file = str(tmp_path / "two.py")
    Path(file).write_text(TWO)
    stale = Frame(file, 11, "torch_dynamo_resume_in_decode_at_11")
    now, inner = Frame(file, 12, "decode"), Frame(file, 6, "encode")
    assert drafts._last_of_each((stale, now, inner)) == (now, inner)
