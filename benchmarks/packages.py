"""What `check` says of programs that compile packages of others, judged by hand.

    python -m benchmarks.packages [PROGRAM ...] [--jobs N]

A row is a program of benchmarks/package_programs.py: `check --effort quick` runs it,
and the same program runs plainly under TORCH_LOGS=graph_breaks,recompiles. The findings
above `low` are stored, with whether torch's log confirms them, and the breaks that
torch logs and no finding reports. Fill in `verdict` ("right" or "wrong") and `why` by
hand: they stay with their finding. Exit code 1 when a finding has no verdict, or fewer
than nine in ten are right.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from benchmarks.package_programs import TARGETS, Target
from benchmarks.survey import Options, Row, Survey, python, torchproof

RIGHT = 0.9  # of all findings, at least
LOUD = ("high", "medium")
JUDGED = {"verdict": None, "why": ""}
COMPILER = ("torch", "functorch", "triton", "torchgen")
HEAD = "import torch\nfrom torch import nn\n\n\n"
# Runs a program plainly: torch's own log, and no code generated.
PLAIN = """\
import runpy
import sys

import torch

compile = torch.compile


def compiled(model=None, **options):
    kept = {k: options[k] for k in {"fullgraph", "dynamic", "disable"} & set(options)}
    return compile(model, backend="eager", **kept)


torch.compile = compiled
name, kind = sys.argv[1:]
module = runpy.run_path(name, run_name="__main__")
if kind != "script":
    model, calls = module["make"]()
    model = compiled(model)
    for call in calls:
        out = model(**call) if isinstance(call, dict) else model(*call)
        if kind == "train":
            from torchproof.targets.calls import loss

            loss(out).backward()
"""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_BREAK = re.compile(r"Graph break .*in user code at (?P<file>.+):(?P<line>\d+)$")
_INSIDE = re.compile(r"in (?P<file>\S+):(?P<line>\d+) ")
_AGAIN = re.compile(r"Recompiling function (?P<name>\S+) in ")

Place = tuple[str, int]


def program(target: Target) -> str:
    """The source of one row: a script, or a file with the factory `make`."""
    text = inspect.getsource(target.body)
    body = text[text.index("def ") :].partition("\n")[2]
    if target.is_script:
        return textwrap.dedent(body)
    return f"{HEAD}def make():\n{body}"


def measure(name: str, options: Options) -> Row:
    target = TARGETS[name]
    if importlib.util.find_spec(target.package) is None:
        return {"error": f"{target.package} is not installed"}
    distribution = importlib.metadata.packages_distributions()[target.package][0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "target.py")
        file.write_text(program(target))
        log = plain_log(file, target)
        place = str(file) if target.is_script else f"{file}:make"
        words = ("--effort", "quick", "--fail-on", "never", *target.options)
        run, error = torchproof("check", place, *words, limit_s=options.limit)
    if run is None:
        return {"error": error}
    known = SURVEY.read()["rows"].get(name, {}).get("findings", [])
    return {
        "package": target.package,
        "version": importlib.metadata.version(distribution),
        "findings": judged(loud(run, log), known),
        "breaks": [len(breaks(log)), run["counts"]["graph_breaks"]],
        "recompiles": [len(_AGAIN.findall(log)), run["counts"]["recompiles"]],
        "unreported": unreported(run, log),
    }


def plain_log(file: Path, target: Target) -> str:
    """What torch logs of a program that runs without torchproof."""
    kind = "script" if target.is_script else "train" if target.options else "factory"
    plain = file.with_name("plain.py")
    plain.write_text(PLAIN)
    words = (plain.name, file.name, kind)
    done = python(*words, cwd=file.parent, TORCH_LOGS="graph_breaks,recompiles")
    return done.stderr


# -- findings against torch's log ------------------------------------------------------


def loud(run: Row, log: str) -> list[Row]:
    """The findings above `low`, as rows to judge."""
    return [
        {
            "code": f["code"],
            "severity": f["severity"],
            "place": f"{shortened(f['file'])}:{f['line']}",
            "source": (f["source"] or "").strip(),
            "message": f["message"],
            "fix": f["fix"],
            "logged": is_logged(f, log),
        }
        for f in run["findings"]
        if f["status"] == "open" and f["severity"] in LOUD
    ]


def judged(findings: list[Row], known: list[Row]) -> list[Row]:
    """With the verdicts that are written beside the same findings."""

    def key(finding: Row) -> tuple[str, ...]:
        return tuple(finding[name] for name in ("code", "place", "message"))

    verdicts = {key(each): {name: each[name] for name in JUDGED} for each in known}
    return [finding | verdicts.get(key(finding), JUDGED) for finding in findings]


def is_logged(finding: Row, log: str) -> bool:
    """Whether torch logs a break at the finding's line, or one of its guards."""
    evidence = finding["evidence"]
    if finding["kind"] == "recompile":
        guards = [_lasting(e.split(": ", 1)[-1])[:40] for e in evidence]
        return any(guard in _lasting(log) for guard in guards)
    named = [each for each in map(_INSIDE.match, evidence) if each]
    last = named[-1] if named else finding
    place = os.path.basename(last["file"] or "-"), int(last["line"] or 0)
    return place in {(os.path.basename(f), n) for each in breaks(log) for f, n in each}


def _lasting(text: str) -> str:
    """Without the addresses of a run."""
    return re.sub(r"\d{6,}", "-", " ".join(text.split()))


def shortened(file: str | None) -> str:
    return re.sub(r"^.*/(?:(?:site|dist)-packages|tmp\w+)/", "", file or "-")


def unreported(run: Row, log: str) -> list[str]:
    """Breaks in torch's log at which no finding, however quiet, is placed."""
    findings = run["findings"]
    places = {(os.path.basename(f["file"] or "-"), f["line"]) for f in findings}
    for finding in findings:  # a line of a library that a line of the program calls
        for match in filter(None, map(_INSIDE.match, finding["evidence"])):
            places.add((os.path.basename(match["file"]), int(match["line"])))
    logged = {innermost(frames) for frames in breaks(log)}
    return sorted(f"{file}:{line}" for file, line in logged - places)


def innermost(frames: list[Place]) -> Place:
    """The last line of a traceback that is neither torch's nor Python's own."""
    others = [frame for frame in frames if outside_torch(frame[0])]
    file, line = (others or frames)[-1]
    return os.path.basename(file), line


def outside_torch(file: str) -> bool:
    """Whether a frame is neither torch's nor the standard library's."""
    installed = re.search(r"/(?:site|dist)-packages/([^/]+)", file)
    if installed:
        return installed[1].removesuffix(".py") not in COMPILER
    return not file.startswith("<") and not re.search(r"/lib/python3\.\d+/", file)


def breaks(log: str) -> list[list[Place]]:
    """The frames of each break that torch logs."""
    several: list[list[Place]] = []
    is_inside = False
    for line in log.splitlines():
        if match := _BREAK.search(line):
            several.append([(match["file"], int(match["line"]))])
            is_inside = True
        elif _AGAIN.search(line):
            is_inside = False
        elif is_inside and "[__graph_breaks]" in line and (m := _FRAME.search(line)):
            several[-1].append((m["file"], int(m["line"])))
    return several


def failures(found: dict[str, Row]) -> Iterator[str]:
    every = [(name, f) for name, row in found.items() for f in row["findings"]]
    for name, finding in every:
        if finding["verdict"] is None:
            yield f"{name}: {finding['code']} at {finding['place']}: judge it"
    right = sum(finding["verdict"] == "right" for _, finding in every)
    if right < RIGHT * len(every):
        yield f"{right} of {len(every)} findings are right"


SURVEY = Survey("packages", lambda options: list(TARGETS), measure, failures)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
