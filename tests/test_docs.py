"""The documents: their commands and programs run, their generated parts are current.

Commands that start torch or measure are slow tests; `make test` parses them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bench_runs
import forked_commands
import load_runs
import pytest
import report_runs
from command_line import FLAGS
from commands import Done, run

from torchproof import packs
from torchproof.checking.rules import RULES
from torchproof.cli.commands import Mcp
from torchproof.cli.parser import parsed
from torchproof.records import store

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Its commands build on each other: test_getting_started.py runs them in order.
WALKTHROUGH = DOCS / "getting-started.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
DOCUMENTS = [page for page in PAGES if page != WALKTHROUGH]
# Verbs that never start torch, whatever their arguments.
LIGHT = ("compare", "completion", "log", "rule", "show")
# Verbs that take long: one factory and one script stand for all.
MEASURING = ("bench", "fix", "loadtest", "tune")
RUN = ("pytest", "python", "tar", "torchproof")  # other programs are not run
# What makes measuring short; the last of two equal flags counts.
SHORTER = {
    "bench": ["--seconds", "0.2", "--repeats", "1"],
    "loadtest": ["--requests", "100"],
    "tune": ["--budget", "1m", "--effort", "quick"],
}
# Their programs compile or measure for long.
SLOW_PROGRAMS = ("bench.md", "compile.md", "fix.md", "loadtest.md", "tune.md")
NEEDS_PACK = "load.md"  # its program loads the pack that its command makes

sys.path.insert(0, str(ROOT / "scripts" / "docs"))
import generate  # noqa: E402


def blocks(path: Path, *languages: str) -> Iterator[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.M | re.S)
    return (text for language, text in fences if language in languages)


def commands(path: Path) -> list[str]:
    """The command lines a document shows, without the comments beside them."""
    lines = [line for text in blocks(path, "bash") for line in text.splitlines()]
    for text in blocks(path, "console"):
        lines += [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    plain = [re.sub(r"\s+# .*", "", line) for line in lines]
    return [line for line in plain if shlex.split(line, comments=True)]


def words(line: str) -> list[str]:
    """The words of a command, without the variables before it."""
    found = shlex.split(line, comments=True)
    while re.match(r"\w+=", found[0]):
        del found[0]
    return found


def programs() -> tuple[dict[str, str], dict[Path, str]]:
    """Python in the documents: files by their name, and one program a document."""
    files, snippets = {}, dict[Path, str]()
    for path in DOCUMENTS:
        for text in blocks(path, "python"):
            if named := re.match(r"# file: (\S+)\n", text):
                files[named[1]] = text
            else:
                snippets[path] = snippets.get(path, "") + text
    return files, snippets


FILES, PROGRAMS = programs()
README_LINE = shlex.join(["torchproof", *generate.COMMAND])


def is_light(line: str) -> bool:
    """Whether it is a command of torchproof that ends at once, without torch."""
    name, *arguments = words(line)
    static = {"static", "--list"} & set(arguments)
    return name == "torchproof" and (arguments[0] in LIGHT or bool(static))


def light_commands() -> dict[Path, list[str]]:
    found = {path: list(filter(is_light, commands(path))) for path in DOCUMENTS}
    return {path: lines for path, lines in found.items() if lines}


def mechanism(line: str) -> str:
    """What a command runs: others like it are parsed, their verbs' tests run them."""
    name, *arguments = words(line)
    if name != "torchproof" or arguments[0] not in MEASURING:
        target = next((word for word in arguments if ":" in word or ".py" in word), "")
        return line if name != "torchproof" else f"{arguments[0]} {target}"
    return f"{arguments[0]} {runs_a_script(line)}"


def runs_a_script(line: str) -> bool:
    return re.search(r"\S+\.py\b(?!:)", line) is not None


def heavy_pages() -> dict[Path, list[str]]:
    """Pages with the commands that start torch, one of each mechanism.

    Those of the README's output and of the walkthrough run in tests of their own.
    """
    pages = dict[Path, list[str]]()
    seen = set(map(mechanism, [README_LINE, *commands(WALKTHROUGH)]))
    for path in DOCUMENTS:
        for line in commands(path):
            if words(line)[0] in RUN and not is_light(line):
                if mechanism(line) not in seen:
                    pages.setdefault(path, []).append(line)
                seen.add(mechanism(line))
    return pages


LIGHT_COMMANDS, HEAVY_PAGES = light_commands(), heavy_pages()


def write_inputs(folder: Path) -> None:
    """What commands name: files of the documents, saved runs and packs."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    timed = bench_runs.bench(
        [bench_runs.row("eager", 1.0), bench_runs.row("full", 0.5)]
    )
    served = load_runs.run([load_runs.clean()])
    saved = {"before": timed, "after": timed, "run": report_runs.STATIC}
    saved |= {"load-before": served, "load-after": served}
    for name, each in saved.items():
        (folder / f"{name}.json").write_text(json.dumps(each.to_json()))
    store.save(report_runs.CHECK, folder / store.RUNS)
    with packs.archive(folder / "bug.tar.gz") as stage:
        (stage.path / "repro.py").write_text("raise SystemExit(1)")
        stage.seal(packs.Manifest("repro", "model", "0"))
    with packs.folder(folder / "served-pack") as stage:
        stage.seal(packs.Manifest("deploy", "served", "0"))


# -- commands --------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_understood(path: Path) -> None:
    """The parser takes each, and their targets are files of the documents."""
    for line in commands(path):
        name, *arguments = words(line)
        if name == "torchproof" and not {"|", ">", "&&"} & set(arguments):
            options = parsed(arguments)
            target = str(getattr(options, "target", None) or "").partition(":")[0]
            assert not target.endswith(".py") or target in FILES, line
        elif name == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
            given = [word for word in arguments if "=" not in word]
            assert given and set(given) <= set(targets), line
        elif name == "pip":
            assert arguments in (["install", "."], ["install", "torchproof"]), line
        elif name == ".venv/bin/pytest":
            assert (ROOT / arguments[0]).exists(), line
        else:
            assert name in ("git", *RUN), line


@pytest.mark.parametrize(
    ("path", "lines"),
    [*LIGHT_COMMANDS.items()],
    ids=[path.name for path in LIGHT_COMMANDS],
)
def test_light_commands_run(
    path: Path, lines: list[str], tmp_path: Path, answer: Any
) -> None:
    """One after the other in one folder, in this process."""
    write_inputs(tmp_path)
    for line in lines:
        arguments = words(line)[1:]
        if "-o" in arguments:
            Path(arguments[arguments.index("-o") + 1]).unlink(missing_ok=True)
        code, _, err = answer(*arguments)
        assert code in (0, 1) and "Traceback" not in err, f"{line}: {err}"


def shortened(line: str) -> str:
    """The command, with the flags that make its measuring short."""
    found = shlex.split(line, comments=True)
    more = SHORTER.get(found[1], []) if found[0] == "torchproof" else []
    if not more:
        return line
    if runs_a_script(line):  # it runs once
        more = more[: more.index("--repeats")]
    at = found.index("--") if "--" in found else len(found)
    return shlex.join([*found[:at], *more, *found[at:]])


def in_shell(line: str, folder: Path) -> Done:
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return run(["sh", "-c", line], folder, {"PATH": search}, 1200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "lines"),
    [*HEAVY_PAGES.items()],
    ids=[path.name for path in HEAVY_PAGES],
)
def test_every_command_runs(path: Path, lines: list[str], tmp_path: Path) -> None:
    """In a shell and in real processes, as a user runs them."""
    write_inputs(tmp_path)
    for line in lines:
        for made in re.findall(r" -o (\S+)", line):  # by an earlier line or above
            in_shell(f"rm -rf {shlex.quote(made)}", tmp_path)
        done = in_shell(shortened(line), tmp_path)
        assert done.returncode in {0, 1}, f"{line}: {done.stderr}"
        assert "Traceback" not in done.stderr, line
    if path.name == NEEDS_PACK:
        (tmp_path / "shown.py").write_text(PROGRAMS[path])
        done = in_shell("python shown.py", tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_readme_shows_what_the_command_prints(tmp_path: Path) -> None:
    pinned = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    if version("torch").partition("+")[0] not in pinned:
        pytest.skip("the README shows what the pinned torch gives")
    done = forked_commands.torchproof(*generate.COMMAND, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    readme = (ROOT / "README.md").read_text()
    shown = generate.lasting(generate.getting_started.shown(done.stdout, effects=False))
    assert shown in generate.lasting(readme), "run `make docs`"


# -- programs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.name in SLOW_PROGRAMS else [])
        for path in PROGRAMS
        if path.name != NEEDS_PACK
    ],
    ids=lambda path: path.name,
)
def test_python_in_the_documents_runs(path: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    text = PROGRAMS[path].replace("requests=500", "requests=100")
    text = text.replace("budget_s=120", "budget_s=30")
    done = forked_commands.python(text, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# -- what pages contain ----------------------------------------------------------------


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
    assert len(next(blocks(ROOT / "README.md", "bash")).splitlines()) == 2


@pytest.mark.parametrize("verb", [verb for verb in FLAGS if verb])
def test_page_of_a_verb_names_every_flag(verb: str) -> None:
    text = (DOCS / f"{verb}.md").read_text()
    assert text.startswith(f"# `torchproof {verb}`")
    assert f"](docs/{verb}.md)" in (ROOT / "README.md").read_text()
    flags = {flag for flag in FLAGS[verb] if flag.startswith("-")} - {"-h", "--help"}
    assert not {flag for flag in flags if not re.search(rf"(?<![\w-]){flag}\b", text)}


def test_page_of_rules_names_every_family() -> None:
    families = {rule.code[:2] for rule in RULES}
    text = (DOCS / "rule.md").read_text()
    assert families == set(re.findall(r"^\| ([A-Z]{2}) \|", text, re.M))


def test_configurations_for_agents_start_the_server() -> None:
    texts = re.findall(
        r"^```(json|toml)\n(.*?)^```$", (DOCS / "mcp.md").read_text(), re.M | re.S
    )
    read = {"json": json.loads, "toml": tomllib.loads}
    found = [e["torchproof"] for kind, text in texts for e in read[kind](text).values()]
    assert found
    for entry in found:
        assert isinstance(parsed(entry["args"]), Mcp)
        assert entry["command"] == "torchproof"


# Attributes through which a page loads something when it is opened.
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]+)"
    r"|<link[^>]* rel=\"(?:stylesheet|preconnect|icon)\"[^>]* href=\"(https?:[^\"]+)"
)


@pytest.mark.slow
def test_site_has_no_dead_link_and_loads_nothing(tmp_path: Path) -> None:
    """Strict: a link or an anchor that leads nowhere is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d"]
    done = run([*command, tmp_path], ROOT, {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    assert not [page for page in pages if LOADED.search(page.read_text())]
