"""What `check` says of programs that compile packages of others.

    python benchmarks/compile_users.py run FOLDER [--only NAME,...] [--jobs N]
    python benchmarks/compile_users.py collect FOLDER [--write]

`run` writes every target of benchmarks/compile_targets.py as a program of its own into
FOLDER, checks it, and runs the same program plainly under
TORCH_LOGS=graph_breaks,recompiles. One JSON file per target keeps both; a run that was
stopped resumes. A check that takes `--each` seconds is repeated with `--effort quick`.

`collect` lists the findings above `low`, and what torch logs and no finding reports.
With `--write` they go to benchmarks/results/compile_users.json, where `verdict`
("right" or "wrong"), `fits` (whether the fix suits this code) and `why` are filled in
by hand and stay with their finding. Exit code 1 when a finding has no verdict.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.compile_targets import TARGETS, Target  # noqa: E402
from benchmarks.library_scripts import outside_torch  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results" / "compile_users.json"
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
name, how = sys.argv[1:]
module = runpy.run_path(name, run_name="__main__")
if how != "script":
    model, calls = module["make"]()
    model = compiled(model)
    for call in calls:
        out = model(**call) if isinstance(call, dict) else model(*call)
        if how == "train":
            from torchproof.targets.calls import loss

            loss(out).backward()
"""


def program(target: Target) -> str:
    """The source of one target: a script, or a file with the factory `make`."""
    text = inspect.getsource(target.body)
    text = text[text.index("def ") :]
    body = text.partition("\n")[2]
    if target.is_script:
        return textwrap.dedent(body)
    return f"{HEAD}def make():\n{body}"


def missing(target: Target) -> bool:
    return importlib.util.find_spec(target.package) is None


def one(target: Target, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A target checked, and run plainly."""
    here = folder / target.name
    here.mkdir(parents=True, exist_ok=True)
    (here / "target.py").write_text(program(target))
    (here / "plain.py").write_text(PLAIN)
    row: dict[str, Any] = {"name": target.name, "package": target.package}
    if missing(target):
        return {**row, "ending": "skipped", "error": "not installed"}
    row["version"] = version(target.package)
    how = "script" if target.is_script else "train" if target.options else "factory"
    row["log"] = plain(here, how, options.each)
    for effort in dict.fromkeys((options.effort, "quick")):
        begin = time.perf_counter()
        row |= check(target, here, effort, options)
        row |= {"effort": effort, "seconds": round(time.perf_counter() - begin, 1)}
        if row["ending"] != "killed":
            break
    return row


def version(package: str) -> str | None:
    names = importlib.metadata.packages_distributions().get(package)
    return importlib.metadata.version(names[0]) if names else None


def check(
    target: Target, here: Path, effort: str, options: argparse.Namespace
) -> dict[str, Any]:
    name = "target.py" if target.is_script else "target.py:make"
    command = [sys.executable, "-m", "torchproof", "check", name, "--effort", effort]
    command += ["--fail-on", "never", "--format", "json", *target.options]
    if options.device and not target.is_script:
        command += ["--device", options.device]
    code, out, err = limited(command, here, options.each, {})
    if code is None:
        return {"ending": "killed", "error": f"not finished after {options.each:.0f} s"}
    try:
        return {"ending": "checked", "code": code, "run": json.loads(out)}
    except ValueError:
        return {"ending": "failed", "code": code, "error": err[-3000:]}


def plain(here: Path, how: str, limit: float) -> dict[str, Any]:
    environment = {"TORCH_LOGS": "graph_breaks,recompiles"}
    command = [sys.executable, "plain.py", "target.py", how]
    code, _, err = limited(command, here, limit, environment)
    return {"code": code, "text": err[-400_000:]}


def limited(
    command: list[str], here: Path, limit: float, environment: dict[str, str]
) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of a process; no code when it reached the limit."""
    with subprocess.Popen(
        command,
        cwd=here,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return None, out, err
        return process.returncode, out, err


def run(options: argparse.Namespace) -> int:
    folder: Path = options.folder.resolve()
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    only = set(filter(None, options.only.split(",")))
    end = time.monotonic() + options.limit
    waiting = [t for t in TARGETS.values() if not only or t.name in only]

    def task(target: Target) -> None:
        kept = folder / "rows" / f"{target.name}.json"
        if kept.exists() or time.monotonic() > end:
            return
        row = one(target, folder / "programs", options)
        kept.write_text(json.dumps(row, indent=1))
        print(target.name, row["ending"], row.get("seconds"), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(task, waiting))
    return 0


LOUD = ("high", "medium")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_BREAK = re.compile(r"Graph break .*in user code at (?P<file>.+):(?P<line>\d+)$")
_INSIDE = re.compile(r"in (?P<file>\S+):(?P<line>\d+) ")
_AGAIN = re.compile(r"Recompiling function (?P<name>\S+) in ")


def loud(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings above `low` of one target, as rows to judge."""
    findings = row.get("run", {}).get("findings", [])
    return [
        {
            "target": row["name"],
            "code": f["code"],
            "severity": f["severity"],
            "place": f"{shortened(f['file'])}:{f['line']}",
            "source": (f["source"] or "").strip(),
            "message": f["message"],
            "cause": f["cause"],
            "fix": f["fix"],
            "inside": inside(f["evidence"]),
            "logged": is_logged(f, row["log"]["text"]),
            "effect": bool(f["cause_of"]),
            "count": f["count"],
        }
        for f in findings
        if f["status"] == "open" and f["severity"] in LOUD
    ]


def is_logged(finding: dict[str, Any], log: str) -> bool:
    """Whether torch logs a break at the finding's line, or one of its guards."""
    evidence = finding["evidence"]
    if finding["kind"] == "recompile":
        guards = [_lasting(e.split(": ", 1)[-1])[:40] for e in evidence]
        return any(guard in _lasting(log) for guard in guards)
    named = [each for each in map(_INSIDE.match, evidence) if each]
    last = named[-1] if named else finding
    place = os.path.basename(last["file"] or "-"), int(last["line"] or 0)
    logged = {(os.path.basename(f), n) for frames in breaks(log) for f, n in frames}
    return place in logged


def _lasting(text: str) -> str:
    """Without the addresses of a run."""
    return re.sub(r"\d{6,}", "-", " ".join(text.split()))


def inside(evidence: list[str]) -> str | None:
    """The innermost line outside torch that the evidence names, if any."""
    named = [each for each in map(_INSIDE.match, evidence) if each]
    if not named:
        return None
    return f"{shortened(named[-1]['file'])}:{named[-1]['line']}"


def shortened(file: str | None) -> str:
    return re.sub(r"^.*/(?:(?:site|dist)-packages|programs/\w+)/", "", file or "-")


def unreported(row: dict[str, Any]) -> list[str]:
    """Breaks in torch's log at which no finding, however quiet, is placed."""
    findings = row.get("run", {}).get("findings", [])
    said = {(os.path.basename(f["file"] or "-"), f["line"]) for f in findings}
    for (
        finding
    ) in findings:  # a line of a library, where a line of the program calls it
        for match in map(_INSIDE.match, finding["evidence"]):
            if match:
                said.add((os.path.basename(match["file"]), int(match["line"])))
    places = {innermost(frames) for frames in breaks(row["log"]["text"])}
    return sorted(f"{file}:{line}" for file, line in places - said)


def innermost(frames: list[tuple[str, int]]) -> tuple[str, int]:
    """The last line of a traceback that is neither torch's nor Python's own."""
    others = [frame for frame in frames if outside_torch(frame[0])]
    file, line = others[-1] if others else frames[-1]
    return os.path.basename(file), line


def breaks(text: str) -> list[list[tuple[str, int]]]:
    """The frames of each break that torch logs."""
    several: list[list[tuple[str, int]]] = []
    inside = False
    for line in text.splitlines():
        if match := _BREAK.search(line):
            several.append([(match["file"], int(match["line"]))])
            inside = True
        elif _AGAIN.search(line):
            inside = False
        elif inside and "[__graph_breaks]" in line and (match := _FRAME.search(line)):
            several[-1].append((match["file"], int(match["line"])))
    return several


def collect(options: argparse.Namespace) -> int:
    rows = [
        json.loads(p.read_text()) for p in sorted(options.folder.glob("rows/*.json"))
    ]
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"findings": []}
    known = {key(f): f for f in kept["findings"]}
    empty = {"verdict": None, "fits": None, "why": ""}
    findings, targets = [], []
    for row in rows:
        mine = [
            {**f, **{k: known.get(key(f), empty)[k] for k in empty}} for f in loud(row)
        ]
        findings += mine
        targets.append(summary(row, mine))
    for finding in findings:
        print({k: finding[k] for k in ("target", "code", "place", "verdict")})
    print(Counter(f["verdict"] for f in findings))
    if options.write:
        text = {"command": "python benchmarks/compile_users.py collect FOLDER --write"}
        document = {**text, **around(rows), "targets": targets, "findings": findings}
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(f["verdict"] is None for f in findings))


def key(finding: dict[str, Any]) -> tuple[str, ...]:
    """What identifies a finding here: several may have one place."""
    return tuple(finding[k] for k in ("target", "code", "place", "message"))


def around(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The versions the results hold for."""
    ran: dict[str, Any] = next((row["run"] for row in rows if "run" in row), {})
    environment = ran.get("environment", {})
    return {k: environment.get(k) for k in ("torch", "python", "platform")}


def summary(row: dict[str, Any], findings: list[dict[str, Any]]) -> dict[str, Any]:
    """One target: how it ended, and what torch's log has that no finding reports."""
    log = row.get("log", {"text": ""})["text"]
    counts = row.get("run", {}).get("counts", {})
    return {
        "name": row["name"],
        "package": row["package"],
        "version": row.get("version"),
        "ending": row["ending"],
        "effort": row.get("effort"),
        "seconds": row.get("seconds"),
        "loud": len(findings),
        "breaks": [len(breaks(log)), counts.get("graph_breaks")],
        "recompiles": [len(_AGAIN.findall(log)), counts.get("recompiles")],
        "unreported": unreported(row) if "run" in row else [],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(required=True)
    running = verbs.add_parser("run", help="check every target")
    running.add_argument("folder", type=Path)
    running.add_argument("--only", default="", metavar="NAME,...")
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--limit", type=float, default=1e9, help="begin none after")
    running.add_argument("--each", type=float, default=600, help="seconds of one check")
    running.add_argument("--effort", default="normal", choices=("quick", "normal"))
    running.add_argument("--device", help="move the factories' models there")
    running.set_defaults(verb=run)
    collecting = verbs.add_parser("collect", help="list what is to be judged")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--write", action="store_true", help="keep the findings")
    collecting.set_defaults(verb=collect)
    options = parser.parse_args()
    status: int = options.verb(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
