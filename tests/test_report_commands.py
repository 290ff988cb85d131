"""The commands a report shows: the real command line understands every one."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import check_runs
import pytest
from check_runs import ITEM, READ

from torchproof.checking import checker, rules
from torchproof.cli import parser
from torchproof.records.run import Finding, Run
from torchproof.report import commands

TARGETS = {
    "workload:gpt": "torchproof check workload:gpt --train --size=tiny --format md",
    "my dir/model.py:make": "torchproof check 'my dir/model.py:make' -o 'a b.md' -v",
    "package.module:make": "torchproof check package.module:make --skip batch",
    "train.py": "torchproof check train.py --timeout 9 --effort full -- --lr 1 'a b'",
    "trace:recorded": "torchproof check trace:recorded --select GB,RC",
    "src": "torchproof check src --effort static --fail-on never",
}
WRITTEN = "torchproof check model.py:make --as-written --device cpu --baseline x"
TARGETS["model.py:make"] = WRITTEN


def runs() -> list[Run]:
    return [
        check_runs.check(ITEM, READ, target=target, command=command)
        for target, command in TARGETS.items()
    ]


def parsed(line: str) -> Any:
    """As `main` reads it, without what stands before and after."""
    words = shlex.split(line)
    while "=" in words[0]:
        words.pop(0)
    assert words.pop(0) == "torchproof", line
    return parser.parsed(words)


def all_of(run: Run) -> list[str]:
    shown = [command for _, command in commands.diagnostics(run)]
    shown += [commands.verification(finding, run) for finding in run.findings]
    shown += [commands.measuring(run) or "", commands.ablation(run) or ""]
    return [line for line in shown if line and " python " not in f" {line} "]


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.target)
def test_every_command_is_understood_and_about_the_target(run: Run) -> None:
    lines = all_of(run)
    assert len(lines) > 2
    for line in lines:
        options = parsed(line)
        assert options.target in {run.target, "trace:trace"}, line
        if options.target == run.target and "static" not in line:
            kept, script = commands.flags_of(run)
            assert options.script == tuple(script)
            assert shlex.join(kept) in line


SCRIPT = "torchproof check a.py --ranks 2 --trace t.json -- --lr 1"
TRAINED = "torchproof check a.py --train --timeout 9 -- --lr 1"
FACTORY = "torchproof check a.py:make --ranks 2 --launcher x --wrap ddp"
CALLED = {"train": True, "as_written": False, "size": "small", "device": None}
CALLED["compile"] = {"dynamic": True, "mode": "max-autotune"}
CALLED_FLAGS = "--compile dynamic=True,mode=max-autotune --train --size small"
RANKS = {"ranks": 2, "wrap": "ddp", "arguments": ["--lr", "1"]}


@pytest.mark.parametrize(
    ("command", "options", "target", "shown"),
    [
        (FACTORY, {}, "a.py:make", FACTORY.removeprefix("torchproof ")),
        (FACTORY, {}, "a.py:make", "tune a.py:make --ranks 2 --wrap ddp"),
        (FACTORY, {}, "a.py:make", "fix a.py:make"),
        # Only a check of a script repeats its ranks.
        (SCRIPT, {}, "a.py", "check a.py --ranks 2 -- --lr 1"),
        (SCRIPT, {}, "a.py", "bench a.py -- --lr 1"),
        # `fix` runs a script as it is written.
        (TRAINED, {}, "a.py", "fix a.py --timeout 9 -- --lr 1"),
        # Calls from Python have commands too.
        ("", RANKS, "a.py", "check a.py --ranks 2 --wrap ddp -- --lr 1"),
        (*("", CALLED, "workload:gpt"), f"bench workload:gpt {CALLED_FLAGS}"),
    ],
)
def test_flags_are_repeated_where_the_verb_has_them(
    command: str, options: dict[str, Any], target: str, shown: str
) -> None:
    run = check_runs.check(ITEM, command=command, target=target, options=options)
    found = commands.of(run, shown.split()[0])
    assert found == f"torchproof {shown}"
    assert parsed(found).compile == options.get("compile", {})


def test_call_for_a_live_object_has_the_types_of_the_keywords() -> None:
    called = {**CALLED, "size": None}
    run = check_runs.check(ITEM, command="", target="live:Net", options=called)
    flags = ("--select", "GB,RC", "--ablate", "max_autotune", "--seconds", "2")
    assert commands.of(run, "check", *flags[:2], "--fail-on", "low") == (
        "torchproof.check(model, calls, compile={'dynamic': True, 'mode':"
        " 'max-autotune'}, train=True, select=['GB', 'RC'])"
    )
    assert commands.of(run, "bench", *flags[2:]).endswith(
        "train=True, ablate=[('max_autotune', None)], seconds=2.0)"
    )


def needed(code: str) -> set[str]:
    """The parts that a verification leaves in."""
    finding = replace(ITEM, code=code)
    line = commands.verification(finding, check_runs.check(finding))
    options = parsed(line)
    assert options.select == (code,) and options.fail_on == "low"
    return set(checker.EFFORTS[options.effort]) - set(options.skip)


# A load test shows what no part of a check does.
CHECKED = [rule for rule in rules.RULES if rule.parts != ("load",)]


@pytest.mark.parametrize("rule", CHECKED, ids=lambda rule: rule.code)
def test_a_verification_runs_the_parts_that_show_the_finding(rule: Any) -> None:
    own = set(rule.parts)
    assert own <= needed(rule.code) <= own | {"baseline", "static", "breaks"}


def test_static_finding_is_verified_statically() -> None:
    finding: Finding = READ
    options = parsed(commands.verification(finding, check_runs.check()))
    assert (options.effort, options.train) == ("static", False)


@pytest.mark.parametrize("files", ["--trace t.json -o run.json", "--trace=t.json"])
def test_repeated_command_overwrites_no_file(files: str) -> None:
    run = check_runs.check(ITEM, command=f"torchproof check a.py {files} -- -o out")
    assert commands.again(run) == "torchproof check a.py -- -o out"
    for command in ("", "torchproof check 'a.py"):
        assert commands.again(replace(run, command=command)) is None
