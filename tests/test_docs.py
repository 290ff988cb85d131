"""The documents: what they show runs, what they take from the code is current."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bench_runs
import fix_runs
import forked_commands
import load_runs
import pytest
import tune_runs
from commands import Done
from test_cli import COUNT_FIELDS, FINDING_FIELDS, FLAGS, RUN_FIELDS

import torchproof
from torchproof import api, measure, packs
from torchproof.checking.rules import RULES
from torchproof.cli import main
from torchproof.records import (
    ColdPhase,
    MachineCheck,
    Measurement,
    Run,
    Tail,
    Trial,
)
from torchproof.tuning import tuner
from torchproof.tuning.candidates import Eager

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md"))
# Its commands build on each other: test_getting_started.py runs them in order.
WALKTHROUGH = ROOT / "docs" / "getting-started.md"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in PAGES if page != WALKTHROUGH),
]
CHECK = ROOT / "docs" / "check.md"
BENCH = ROOT / "docs" / "bench.md"
TUNE = ROOT / "docs" / "tune.md"
PACK = ROOT / "docs" / "pack.md"
LOAD = ROOT / "docs" / "load.md"
LOADTEST = ROOT / "docs" / "loadtest.md"
COMPARE = ROOT / "docs" / "compare.md"
SHOW = ROOT / "docs" / "show.md"
FIX = ROOT / "docs" / "fix.md"
DOCTOR = ROOT / "docs" / "doctor.md"
# Measuring takes its time: commands of these verbs, and the programs of these pages, go
# through everything but the measuring, and are run where slow tests are.
MEASURING = ("bench", "compare", "fix", "loadtest", "pack", "tune")
MEASURED = (BENCH, LOADTEST, TUNE, FIX)
# The program of load.md needs the pack that its command makes.
RUN_WHOLE = (*MEASURED, PACK, COMPARE, LOAD)
# Their short commands, or their programs, take long: they are slow tests too.
MANY_CHECKS = {"check.md", "ci.md", "decide.md", "ranks.md", "show.md"}
MANY_CHECKS |= {"agents.md", "doctor.md", "timelines.md", "workloads.md"}
MANY_CALLS = {"reliability.md"}

sys.path.insert(0, str(ROOT / "scripts" / "docs"))
import generate  # noqa: E402


def blocks(path: Path, *languages: str) -> Iterator[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.M | re.S)
    return (text for language, text in fences if language in languages)


def commands(path: Path) -> list[str]:
    """The command lines a document shows, without the comments beside them."""
    shown = [line for text in blocks(path, "bash") for line in text.splitlines()]
    for text in blocks(path, "console"):
        shown += [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    plain = [re.sub(r"\s+# .*", "", line) for line in shown]
    return [line for line in plain if shlex.split(line, comments=True)]


def program(line: str) -> str:
    """The first word that is no variable."""
    words = shlex.split(line, comments=True)
    return next(word for word in words if not re.match(r"\w+=", word))


def programs() -> tuple[dict[str, str], dict[Path, str]]:
    """Python in the documents: files by their name, and one program a document."""
    files, snippets = {}, dict[Path, str]()
    for path in DOCUMENTS:
        for text in blocks(path, "python"):
            named = re.match(r"# file: (\S+)\n", text)
            if named:
                files[named[1]] = text
            else:
                snippets[path] = snippets.get(path, "") + text
    return files, snippets


def is_long(line: str) -> bool:
    return shlex.split(line, comments=True)[1:2][0] in MEASURING


def write_files(folder: Path) -> None:
    """What the documents call a file, and the target that a checkout has."""
    for name, text in programs()[0].items():
        (folder / name).write_text(text)


def write_runs(folder: Path) -> Run:
    """The runs that commands name, as if they had been measured."""
    run = bench_runs.bench([bench_runs.row("eager", 1.0), bench_runs.row("full", 0.5)])
    for name in ("before.json", "after.json"):
        (folder / name).write_text(json.dumps(run.to_json()))
    served = load_runs.run([load_runs.clean()])
    for name in ("load-before.json", "load-after.json"):
        (folder / name).write_text(json.dumps(served.to_json()))
    return run


def write_packs(folder: Path) -> None:
    """The packs that commands name, with a repro that says that it fails."""
    repro = packs.Manifest("repro", "model", "0")
    with packs.archive(folder / "bug.tar.gz") as stage:
        (stage.path / "repro.py").write_text("raise SystemExit(1)")
        stage.seal(repro)
    with packs.folder(folder / "served-pack") as stage:
        stage.seal(packs.Manifest("deploy", "served", "0"))


def run_line(line: str, folder: Path, *, patience_s: int = 300) -> Done:
    """A command line as a shell runs it; those of one program are forked."""
    words = shlex.split(line, comments=True)
    if words[0] == "torchproof" and not {"|", "<", ">", ";", "&&"} & set(words):
        return forked_commands.torchproof(*words[1:], cwd=folder)
    if words[0] == "pytest":
        source = f"import pytest; raise SystemExit(pytest.main({words[1:]}))"
        return forked_commands.python(source, cwd=folder)
    return in_shell(line, folder, patience_s)


def in_shell(line: str, folder: Path, patience_s: int) -> Done:
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        line,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": search},
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )


RUNNERS = {"torchproof": {0, 1}, "python": {0}, "pytest": {0}, "tar": {1}}
PRINTED = {
    "README.md": "GB102",
    "check.md": "GB102",
    "decide.md": "regional: 13.42 billion",
    "bench.md": "reference",
    "load.md": " tracing: 1",
    "loadtest.md": "full ",  # and the verdict, which a busy machine changes
    "notebooks.md": "GB101",
    "step.md": "marks",
    "graph.md": "8x512              1   2.4%    24.0 MiB",
    "recipes.md": "torch 2.0.1",
    "reliability.md": "in tracing",
    "compile.md": "100% compiled",
    "tune.md": "chosen: ",
    "fix.md": "verified: ",
    "workloads.md": "torch.Size([2, 128, 578])",
}
LINES = sorted({line for path in DOCUMENTS for line in commands(path)})
RUN = [line for line in LINES if program(line) in RUNNERS]
SHORT, LONG = ([ln for ln in RUN if is_long(ln) is long] for long in (False, True))


README_LINE = shlex.join(["torchproof", *generate.COMMAND])


def shown_first() -> dict[Path, list[str]]:
    """Every distinct short command once, in the document that shows it first."""
    jobs, seen = dict[Path, list[str]](), {README_LINE}
    for path in sorted(DOCUMENTS, key=lambda path: path not in (CHECK, BENCH)):
        lines = [line for line in commands(path) if line in SHORT]
        jobs[path] = [line for line in lines if line not in seen]
        seen |= set(lines)
    return {path: lines for path, lines in jobs.items() if lines}


FIRST = shown_first()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.name in MANY_CHECKS else [])
        for path in FIRST
    ],
    ids=lambda path: path.name,
)
def test_commands_of_a_document_run(path: Path, tmp_path: Path) -> None:
    """One after the other in one folder, where its files lie."""
    write_files(tmp_path)
    write_runs(tmp_path)
    write_packs(tmp_path)
    for line in FIRST[path]:
        done = run_line(line, tmp_path)
        assert done.returncode in RUNNERS[program(line)], f"{line}: {done.stderr}"
        assert "Traceback" not in done.stderr, line


def test_every_short_command_is_run() -> None:
    run = {line for lines in FIRST.values() for line in lines} | {README_LINE}
    assert run == set(SHORT)


def unsearched(search: Any, *_: Path) -> None:
    search.search = None
    search.eager = Eager(Trial("eager"), {}, bench_runs.ENVIRONMENT)


def unpacked(*_: Any, purpose: Any, dest: str, **__: Any) -> packs.PackResult:
    """A pack without anything in it."""
    with (packs.archive if purpose == "repro" else packs.folder)(dest) as stage:
        made = stage.seal(packs.Manifest(purpose, "model", "0"))
    return packs.PackResult(Path(dest), made)


@pytest.fixture
def unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with what commands name, where measuring ends before it begins."""
    write_files(tmp_path)
    run = write_runs(tmp_path)
    known = {"epilogue_fusion": True, "coordinate_descent_tuning": False}
    found = measure.MeasureResult(run.measurements, bench_runs.ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "switches", lambda: known)
    monkeypatch.setattr(measure, "measure", lambda *_: found)
    monkeypatch.setattr(api, "_counted", lambda *_: {})
    served = load_runs.load_test([load_runs.clean()])
    tested = measure.loadtest.LoadTestResult(served, bench_runs.ENVIRONMENT)
    monkeypatch.setattr(measure.loadtest, "run_load_test", lambda *_: tested)
    monkeypatch.setattr(tuner._Tuning, "run", unsearched)
    monkeypatch.setattr(tuner.outcome, "run_of", lambda *_, **__: tune_runs.tune())
    monkeypatch.setattr(api, "pack", unpacked)
    monkeypatch.setattr(api, "fix", lambda *_, **__: fix_runs.run_of())
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("line", LONG)
@pytest.mark.usefixtures("unmeasured")
def test_long_command_in_the_documents_is_understood(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    if "-o" in arguments and arguments[0] != "pack":
        Path(arguments[arguments.index("-o") + 1]).unlink(missing_ok=True)
    assert main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.name)
@pytest.mark.usefixtures("unmeasured")
def test_long_program_in_the_documents_is_understood(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(programs()[1][path], path.name, "exec"), {})
    assert PRINTED[path.name] in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("path", [*RUN_WHOLE, DOCUMENTS[0]], ids=lambda p: p.name)
def test_every_command_of_a_document_runs(path: Path, tmp_path: Path) -> None:
    """In a shell, as a user runs them, with all their measuring."""
    write_files(tmp_path)
    write_runs(tmp_path)
    lines = [ln for ln in commands(path) if program(ln) in RUNNERS]
    for run in ("before.json", "after.json"):  # those that the document itself makes
        if any(f"-o {run}" in line for line in lines):
            (tmp_path / run).unlink()
    if path in programs()[1]:
        (tmp_path / "shown.py").write_text(programs()[1][path])
        lines.append("python shown.py")
    for line in lines:
        done = in_shell(line, tmp_path, 1200)
        assert done.returncode in {0, 1}, f"{line}: {done.stderr}"
        assert "Traceback" not in done.stderr, line
    assert PRINTED.get(path.name, "") in done.stdout


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.name in MANY_CALLS else [])
        for path in programs()[1]
        if path not in RUN_WHOLE
    ],
    ids=lambda path: path.name,
)
def test_python_in_the_documents_runs(path: Path, tmp_path: Path) -> None:
    write_files(tmp_path)
    done = forked_commands.python(programs()[1][path], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert PRINTED[path.name] in done.stdout


def exists(module: str, name: str) -> bool:
    """Whether a module has this name, or a submodule of this name."""
    found = importlib.util.find_spec(f"{module}.{name}") if is_package(module) else None
    return found is not None or hasattr(importlib.import_module(module), name)


def is_package(module: str) -> bool:
    return hasattr(importlib.import_module(module), "__path__")


@pytest.mark.parametrize("path", [*DOCUMENTS, WALKTHROUGH], ids=lambda path: path.name)
def test_names_that_python_imports_from_torchproof_exist(path: Path) -> None:
    """Also in blocks that no test runs."""
    for text in blocks(path, "python", "py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(
                "torchproof"
            ):
                assert all(exists(node.module, name.name) for name in node.names), text
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = {"torchproof": torchproof, "packs": packs}.get(node.value.id)
                assert module is None or hasattr(module, node.attr), text


@pytest.mark.parametrize("line", [ln for ln in LINES if program(ln) not in RUNNERS])
def test_command_in_the_documents_exists(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)
    words = [word for word in arguments if not re.match(r"-|\w+=", word)]
    if name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert words and set(words) <= set(targets)
    elif name == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert words == ["install", "."] or words == ["install", project["name"]]
    elif name == ".venv/bin/pytest":
        assert all((ROOT / word).exists() for word in words[:1])
    elif name == "pytest":  # test_pytest_plugin.py runs it
        assert words and set(words) <= set(programs()[0])
    else:
        raise AssertionError(f"nothing here knows how to check: {line}")


def test_what_is_generated_is_current() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generate.documents().items()
        if path.read_text() != text
    ]
    assert not stale, f"run `make docs`: {', '.join(stale)}"


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    commands = re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)[0]
    assert len(commands.splitlines()) == 2


def test_every_verb_has_a_page() -> None:
    readme = (ROOT / "README.md").read_text()
    for verb in filter(None, FLAGS):
        page = ROOT / "docs" / f"{verb}.md"
        assert page.read_text().startswith(f"# `torchproof {verb}`")
        assert f"](docs/{verb}.md)" in readme


def test_page_of_rules_names_every_family() -> None:
    text = (ROOT / "docs" / "rule.md").read_text()
    families = {rule.code[:2] for rule in RULES}
    assert families == set(re.findall(r"^\| ([A-Z]{2}) \|", text, re.M))


def test_readme_shows_what_the_command_prints(tmp_path: Path) -> None:
    pinned = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    if version("torch").partition("+")[0] not in pinned:
        pytest.skip("the README shows what the pinned torch gives")
    done = run_line(README_LINE, tmp_path)
    assert done.returncode == 1, done.stderr
    readme = (ROOT / "README.md").read_text()
    shown = generate.lasting(generate.output(done.stdout))
    assert shown in generate.lasting(readme), "run `make docs`"


FIELDS = {*RUN_FIELDS, *COUNT_FIELDS, *FINDING_FIELDS}
NAMES = {
    CHECK: FLAGS["check"] | FIELDS,
    BENCH: FLAGS["bench"] | set(Measurement("eager").to_json()),
    COMPARE: FLAGS["compare"],
    SHOW: FLAGS["show"] - {"RUN"},
    TUNE: FLAGS["tune"] | set(tune_runs.TUNING) | set(tune_runs.TRIALS[0]),
    FIX: FLAGS["fix"]
    | set(fix_runs.setting().to_json())
    | set(fix_runs.RECEIPT.to_json())
    | set(fix_runs.run_of().to_json()["fixing"]),
    LOADTEST: FLAGS["loadtest"]
    | set(load_runs.load_test([]).to_json())
    | set(load_runs.clean().to_json())
    | {field for record in (ColdPhase(), Tail()) for field in record.to_json()},
    DOCTOR: FLAGS["doctor"] | {field.name for field in fields(MachineCheck)},
    PACK: FLAGS["pack"] - {"TARGET | RUN"} | {"--caches", "--clear"},
}


@pytest.mark.parametrize("path", NAMES, ids=lambda path: path.name)
def test_page_names_every_flag_and_field(path: Path) -> None:
    text, names = path.read_text(), NAMES[path] - {"-h", "--help", "TARGET", "A", "B"}
    absent = sorted(n for n in names if not re.search(rf"`{re.escape(n)}\b", text))
    assert not absent


@pytest.mark.parametrize("path", [*DOCUMENTS, WALKTHROUGH], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if not link.startswith("https://"):
            assert (path.parent / link).exists(), link
