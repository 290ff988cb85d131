"""The benchmark of advice: planted remedies get the verdicts that they deserve."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from torchproof import api
from torchproof.records import Finding, Mark, Remedy, Replacement, Setting

pytestmark = pytest.mark.slow  # it is a tool of the benchmarks
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import advice  # noqa: E402
from benchmarks.advice_trial import Server, Trials  # noqa: E402
from benchmarks.advice_verdict import Verdict  # noqa: E402
from benchmarks.survey import Row  # noqa: E402

READS = """\
import torch
from torch import nn


class Scaled(nn.Module):
    def forward(self, x):
        scale = x.sum().item()
        return x * scale


def make():
    return Scaled(), [(torch.randn(2, n),) for n in (3, 3, 4, 5)]
"""
READ = "        scale = x.sum().item()\n"
KEPT = "        scale = x.sum()\n"
HIDES = """\
import torch


def halved(x):
    for _ in range(3):
        if x.max() > 1:
            x = x / 2
    print("halved")
    return x


def make():
    return halved, [(torch.randn(4),) for _ in range(2)]
"""
BRANCH = ("        if x.max() > 1:\n", "            x = x / 2\n")
CHOICE = ("        x = torch.where(x.max() > 1, x / 2, x)\n",)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server((), tmp_path_factory.mktemp("cache"), 120.0)
    yield started
    started.close()


@pytest.fixture(scope="module")
def trials(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials("scaled", READS, tmp_path_factory.mktemp("scaled"), server)


def edit(trials: Trials, old: str, *new: str) -> Remedy:
    line = READS.splitlines(True).index(READ) + 1
    change = Replacement(str(trials.file), line, (old,), new)
    return Remedy("edit", (change,), title="planted")


def setting(name: str, value: bool) -> Remedy:
    return Remedy("setting", settings=(Setting(name, value),))


def found(trials: Trials, code: str = "GB101") -> Finding:
    (finding,) = (f for f in trials.before.loud if f.code == code)
    return finding


def tried(trials: Trials, remedy: Remedy) -> Row:
    return trials.row(replace(found(trials), remedy=remedy))


def test_edit_and_setting_that_keep_outputs_work(trials: Trials) -> None:
    for remedy in (
        edit(trials, READ, KEPT),
        setting("dynamo.capture_scalar_outputs", True),
    ):
        row = tried(trials, remedy)
        assert row["verdict"] == Verdict.WORKS, row["why"]
        assert row["counts"]["graph_breaks"] == [1, 0]


def test_remedy_that_leaves_the_break_has_no_effect(trials: Trials) -> None:
    for remedy in (
        edit(trials, READ, "        # a comment\n", READ),
        edit(trials, READ, "        scale = (x.sum() + 0).item()\n"),
        setting("dynamo.verbose", True),
    ):
        assert tried(trials, remedy)["verdict"] == Verdict.NO_EFFECT


def test_break_that_is_only_declared_intentional_is_worse(trials: Trials) -> None:
    new = "@torch.compiler.disable\ndef read(x):\n    return x.sum().item()\n\n\n"
    above = Replacement(
        str(trials.file), 5, (), (new,), below=("from torch import nn\n", "\n", "\n")
    )
    remedy = edit(trials, READ, "        scale = read(x)\n")
    row = tried(trials, replace(remedy, replacements=(above, *remedy.replacements)))
    assert row["verdict"] == Verdict.WORSE, row["why"]


def test_other_outputs_are_wrong_outputs(trials: Trials) -> None:
    for new in (
        "        scale = 2.0\n",
        "        scale = x.sum().reshape(1).double()\n",
    ):
        row = tried(trials, edit(trials, READ, new))
        assert row["verdict"] == Verdict.WRONG


def test_new_break_is_worse(trials: Trials) -> None:
    row = tried(trials, edit(trials, READ, KEPT, '        print("scaled")\n'))
    assert row["verdict"] == Verdict.WORSE
    assert "GB104" in row["why"]


def test_remedy_that_does_not_fit_or_run_fails(trials: Trials) -> None:
    for remedy in (
        edit(trials, "        not_there()\n", KEPT),
        edit(trials, READ, "        scale = (\n"),
        edit(trials, READ, "        scale = undefined(x)\n"),
        Remedy("mark", marks=(Mark("no_argument", 0, "mark_dynamic"),)),
    ):
        assert tried(trials, remedy)["verdict"] == Verdict.FAILS


def test_remedy_that_only_raises_when_compiled_fails(
    server: Server, tmp_path: Path
) -> None:
    index = "        scale = [0.5, 2.0][int(x.argmax() * 0)]\n"
    trials = Trials("chosen", READS.replace(READ, index), tmp_path, server)
    row = tried(trials, setting("dynamo.capture_scalar_outputs", True))
    assert row["verdict"] == Verdict.FAILS
    assert "raises" in row["why"]


def test_mark_is_set_on_the_arguments(trials: Trials) -> None:
    finding = next(f for f in trials.before.run.findings if f.code == "RC201")
    mark = Remedy("mark", marks=(Mark("x", 1, "mark_dynamic"),))
    row = trials.row(replace(finding, remedy=mark))
    before, after = row["counts"]["recompiles"]
    assert after < before


def test_effect_is_gone_with_the_remedy_of_its_cause(trials: Trials) -> None:
    cause = found(trials)
    effects = [f for f in trials.before.run.findings if f.remedy and f.remedy.of]
    assert effects
    for effect in effects:
        assert effect.remedy.of == (cause.identity,)
        row = trials.row(effect)
        assert (row["verdict"], row["remedy"]) == (Verdict.WORKS, cause.remedy.kind)


def test_finding_in_code_that_was_not_traced_is_uncovered(
    server: Server, tmp_path: Path
) -> None:
    trials = Trials("halved", HIDES, tmp_path, server)
    change = Replacement(str(trials.file), 6, BRANCH, CHOICE)
    finding = found(trials, "GB102")
    remedy = Remedy("edit", (change,), title="planted")
    row = trials.row(replace(finding, remedy=remedy))
    assert row["verdict"] == Verdict.WORKS, row["why"]
    assert [each.split()[0] for each in row["uncovered"]] == ["GB104"]


def test_remedies_without_an_edit_are_not_tried(trials: Trials) -> None:
    assert tried(trials, Remedy("none"))["verdict"] == Verdict.NONE
    assert tried(trials, Remedy("upgrade", version="9.9"))["verdict"] == Verdict.UPGRADE


def test_clean_program_has_nothing_to_try(server: Server, tmp_path: Path) -> None:
    trials = Trials("clean", READS.replace(READ, KEPT), tmp_path, server)
    assert trials.before.run.counts["graphs"]
    assert trials.before.loud == []


def test_names_of_programs_are_their_cells() -> None:
    known = advice.programs()
    groups = [program.group for program in known.values()]
    assert groups.count("torch_examples") >= 60 <= groups.count("ordinary")
    assert all("make" in program.text for program in known.values())
    assert set(advice.SURVEY.quick) <= set(known)


def test_a_fork_finds_what_check_finds(trials: Trials, tmp_path: Path) -> None:
    run = api.check(f"{trials.file}:make", effort="quick", save_in=tmp_path / "runs")

    def places(findings: tuple[Finding, ...]) -> list[tuple[object, ...]]:
        key = lambda f: (f.code, f.line, f.severity, f.fix, f.remedy)  # noqa: E731
        return sorted(map(key, findings), key=repr)

    assert places(run.findings) == places(trials.before.run.findings)
    assert run.counts == trials.before.run.counts
