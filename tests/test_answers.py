"""Wrong and stale answers are found, placed and explained; right ones are not."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from rule_programs import Program, programs, repaired, too_long

from torchproof.checking import rules
from torchproof.records import WrongAnswerEvent
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.records.run import Finding, Frame
from torchproof.targets.job import Job
from torchproof.targets.target import parse

Diagnosed = Callable[[Program], list[Finding]]


# Inductor builds kernels for these; and further programs of a rule.
SLOW = {
    *("NM401-bad", "NM401-bad_3", "NM401-bad_4", "NM404-bad", "NM406-bad_2"),
    *("NM406-bad_4", "NM406-good_3", "NM406-good_4"),
    *("NM412_2-bad_2", "NM415-bad_2"),
}
# Inductor's code for other processors does not have these defects.
ONLY_AARCH64 = {"NM401-bad", "NM401-bad_3", "NM401-bad_4"}


def marks(program: Program) -> list[Any]:
    only_aarch64 = program.name in ONLY_AARCH64 and platform.machine() != "aarch64"
    reason = "Inductor is wrong on aarch64 only"
    slow = [pytest.mark.slow] if program.name in SLOW else []
    return [*slow, pytest.mark.skipif(only_aarch64, reason=reason)]


PROGRAMS = [
    pytest.param(program, id=program.name, marks=marks(program))
    for program in programs("NM*")
]


def serve(cache: str, requests: Connection) -> None:
    """In a process of its own: for each job a verdict, then the diagnosis."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    from torchproof.measure.diagnosis import diagnose
    from torchproof.measure.diagnosis.reruns import TargetRunner
    from torchproof.torch_private.comparison import form_differences

    while request := requests.recv():
        job = Job.from_json(request)
        trial = TargetRunner(job)
        compiled = trial.compiled()
        wrong = trial.wrong(compiled) is not None
        forms = form_differences(compiled, trial.reference.eager)
        requests.send(tuple(diagnose(job, wrong=wrong, forms=forms)))


@contextlib.contextmanager
def diagnosing(cache: str) -> Iterator[Diagnosed]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm_torch", "torchproof.observe.child"])
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(cache, theirs))
    process.start()
    theirs.close()

    def findings(program: Program) -> list[Finding]:
        job = Job.of(parse(program.target), Options(**program.options))
        ours.send(job.to_json())
        assert ours.poll(300), f"no answer about {program.name}"
        return rules.check(Observation(ours.recv(), {}))

    yield findings
    with contextlib.suppress(BrokenPipeError):
        ours.send(None)
    process.join(60)


@pytest.fixture(scope="session")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Diagnosed]:
    with diagnosing(str(tmp_path_factory.mktemp("inductor"))) as findings:
        yield findings


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_gets_its_diagnosis(program: Program, diagnosed: Diagnosed) -> None:
    findings = diagnosed(program)
    assert {(f.code, f.line) for f in findings} == program.expected, findings
    assert not too_long(findings, "NM")


CURED = {"NM403-bad", "NM412-bad", "NM414-bad", "NM415-bad"}


def test_known_remedies_give_the_answers_of_eager(tmp_path: Path) -> None:
    """In a process of its own, which keeps the settings."""
    with diagnosing(str(tmp_path)) as findings:
        for program in (each for each in programs("NM*") if each.name in CURED):
            [found] = findings(program)
            assert found.remedy and found.remedy.kind in ("edit", "setting")
            settings = "".join(f"{each.code}\n" for each in found.remedy.settings)
            text = f"import torch\n{settings}{repaired(program.path, [found])}"
            file = tmp_path / program.path.name
            file.write_text(text)
            assert findings(replace(program, path=file)) == []


def test_every_rule_about_answers_has_a_trigger() -> None:
    shown = {code for each in programs() for code, _ in each.expected}
    # A wrong answer that does not come back cannot be planned.
    codes = {rule.code for rule in rules.RULES if rule.code.startswith("NM")}
    assert codes - shown == {"NM409"}


def test_an_answer_that_was_wrong_once_is_reported() -> None:
    function = Frame("/home/me/model.py", 3, "forward", "def forward(self, x):")
    event = WrongAnswerEvent(function=function)
    [found] = rules.check(Observation((event,), {}))
    assert (found.code, found.severity, found.line) == ("NM409", "high", 3)
