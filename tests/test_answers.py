"""Wrong and stale answers are found, placed and explained; right ones are not."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.specifiers import SpecifierSet
from rule_programs import programs

from torchproof.checking import rules
from torchproof.records.run import Event, Finding, Frame, Observation
from torchproof.targets.job import Job
from torchproof.targets.options import Options
from torchproof.targets.target import parse

FOLDER = Path(__file__).parent / "rules"
Diagnosed = Callable[[Path], list[Finding]]


def events_from(plain: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Events restored from `dataclasses.asdict` or from JSON."""
    return [
        Event(
            kind=entry["kind"],
            frames=tuple(_frame(each) for each in entry["frames"]),
            function=_frame(entry["function"]) if entry["function"] else None,
            data=entry["data"],
            call=entry["call"],
        )
        for entry in plain
    ]


def _frame(plain: Mapping[str, Any]) -> Frame:
    columns = plain["columns"]
    return Frame(**{**plain, "columns": tuple(columns) if columns else None})


def settings(program: Path) -> dict[str, Any]:
    """The constants of a program, read without running it."""
    wanted = {"EXPECT", "COMPILE", "SLOW"}
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(program.read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in wanted
    }


def is_slow(program: Path) -> bool:
    """One trigger and one clean twin of each rule are quick, unless they say so."""
    # NM401/bad is slow; its twin with another backend is not.
    variant = program.stem not in ("bad", "good", "bad_backend")
    return variant or bool(settings(program).get("SLOW"))


def marks(program: Path) -> list[Any]:
    if not is_slow(program):
        return []
    # Inductor's code for other processors does not have these defects.
    elsewhere = program.parent.name == "NM401" and "bad" in program.stem
    reason = "Inductor is wrong on aarch64 only"
    only_arm = elsewhere and platform.machine() != "aarch64"
    return [pytest.mark.slow, pytest.mark.skipif(only_arm, reason=reason)]


PROGRAMS = [
    pytest.param(
        program, id=f"{program.parent.name}-{program.stem}", marks=marks(program)
    )
    for program in sorted(FOLDER.glob("NM*/*.py"))
]


def serve(cache: str, requests: Connection) -> None:
    """In a process of its own: for each job a verdict, then the diagnosis."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    from torchproof.measure.diagnosis import diagnose
    from torchproof.measure.diagnosis.reruns import TargetRunner
    from torchproof.torch_private.comparison import form_differences

    while request := requests.recv():
        job = Job.from_json(json.loads(request))
        trial = TargetRunner(job)
        compiled = trial.compiled()
        wrong = trial.wrong(compiled) is not None
        forms = form_differences(compiled, trial.reference.eager)
        events = diagnose(job, wrong=wrong, forms=forms)
        requests.send(json.dumps([dataclasses.asdict(event) for event in events]))


@pytest.fixture(scope="session")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Diagnosed]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm_torch", "torchproof.observe.child"])
    ours, theirs = context.Pipe()
    cache = str(tmp_path_factory.mktemp("inductor"))
    process = context.Process(target=serve, args=(cache, theirs))
    process.start()
    theirs.close()

    def findings(program: Path) -> list[Finding]:
        options = Options(compile=settings(program).get("COMPILE", {}))
        job = Job.of(parse(f"{program}:make"), options)
        ours.send(json.dumps(job.to_json()))
        assert ours.poll(300), f"no answer about {program}"
        return rules.check(Observation(tuple(events_from(json.loads(ours.recv()))), {}))

    yield findings
    with contextlib.suppress(BrokenPipeError):
        ours.send("")
    process.join(60)


def fits(finding: Finding, wanted: dict[str, Any]) -> bool:
    named = ("code", "kind", "severity")
    return (
        all(getattr(finding, name) == wanted[name] for name in named)
        and wanted["line"] in (finding.source or "")
        and all(word in finding.fix for word in wanted["fix"])
    )


def _applies(wanted: dict[str, Any]) -> bool:
    return SpecifierSet(wanted.get("torch", "")).contains(
        str(torch.__version__).split("+")[0]
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_gets_its_diagnosis(program: Path, diagnosed: Diagnosed) -> None:
    expected = settings(program)["EXPECT"]
    if not all(_applies(wanted) for wanted in expected):
        pytest.skip("this torch does not have the defect")
    found = diagnosed(program)
    assert len(found) == len(expected), found
    for wanted in expected:
        assert any(fits(finding, wanted) for finding in found), found


def test_every_rule_about_answers_has_a_trigger() -> None:
    shown = {
        wanted["code"]
        for program in FOLDER.glob("*/*.py")
        for wanted in settings(program)["EXPECT"]
    }
    shown |= {code for each in programs() for code, _ in each.expected}
    # A wrong answer that does not come back cannot be planned.
    codes = {rule.code for rule in rules.RULES if rule.code.startswith("NM")}
    assert codes - shown == {"NM409"}


def test_an_answer_that_was_wrong_once_is_reported() -> None:
    function = Frame("/home/me/model.py", 3, "forward", "def forward(self, x):")
    event = Event("wrong_answer", function=function, data={"layer": None})
    [found] = rules.check(Observation((event,), {}))
    assert (found.code, found.severity, found.line) == ("NM409", "high", 3)


def test_events_survive_the_stream() -> None:
    frame = Frame("/home/me/model.py", 7, "f", "y = acosh(x)", (4, 12))
    event = Event("wrong_answer", None, (frame,), frame, {"layer": "x"}, 2)
    text = json.dumps(dataclasses.asdict(event))
    assert events_from([json.loads(text)]) == [event]
