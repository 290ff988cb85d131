"""What of a target's source is read, and what source and run say of each other."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import source_reading, suspicions
from torchproof.checking.static.imports import with_imports
from torchproof.checking.static.source import ignores
from torchproof.checking.suspicions import Reading
from torchproof.process import spawn
from torchproof.records import BreakEvent, FailureEvent, GraphEvent, WrapperEvent, blame
from torchproof.records.events import Observation
from torchproof.records.modules import located
from torchproof.records.run import CompileSite, Finding, Frame, UserError
from torchproof.targets.target import parse

FOUND = Finding("GB101", "graph_break", "high", "m", "c", "f", "model.py", 3, "f")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    blame.forget()
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


# -- files, found without importing ----------------------------------------------------


def test_a_module_is_located_and_nothing_is_imported(folder: Path) -> None:
    write(folder / "loud" / "__init__.py", "raise SystemExit('imported')")
    inner = write(folder / "loud" / "inner.py", "raise SystemExit('imported')")
    write(folder / "bare" / "deep" / "m.py", "")  # without __init__.py
    assert located("loud.inner") == inner
    assert located("loud") == folder / "loud" / "__init__.py"
    assert located("bare.deep.m") == folder / "bare" / "deep" / "m.py"
    assert located("loud.none") is None and located("no_such_thing.x") is None
    assert located("sys") is None  # it has no file
    assert "loud" not in sys.modules


def test_the_users_own_imports_are_followed_and_others_are_not(folder: Path) -> None:
    pack = folder / "pack"
    write(pack / "__init__.py", "import sibling\n")  # runs before its modules
    write(folder / "sibling.py", "")
    write(pack / "blocks.py", "from . import parts\nimport pack.cycle\n")
    write(pack / "parts.py", "import json, torch, numpy\n")
    write(pack / "cycle.py", "from pack.blocks import Block\n")
    write(pack / "unused.py", "")
    write(pack / "inner" / "__init__.py", "")
    write(pack / "inner" / "leaf.py", "def (:")  # its reader says that it is no Python
    main = write(
        folder / "main.py",
        "import pack.inner.leaf\ndef late():\n    from pack.blocks import B\n",
    )
    names = {str(path.relative_to(folder)) for path in with_imports([main])}
    inside = ("__init__", "blocks", "cycle", "parts", "inner/__init__", "inner/leaf")
    assert names == {"main.py", "sibling.py", *(f"pack/{name}.py" for name in inside)}


def test_where_nothing_can_be_read_the_check_cannot_run(folder: Path) -> None:
    for name in ("empty.txt", "broken.py"):
        write(folder / "src" / name, "import torch\ndef broken(:\n")
        with pytest.raises(UserError, match=r"\bsrc\b"):
            source_reading.read_target(parse("src"), print)
    write(folder / "src" / "sound.py", "import torch\n")
    found = source_reading.read_target(parse("src"), print)
    part = source_reading.part(found, [])
    assert (part.status, found.files) == ("passed", 2)
    assert "broken.py" in part.why and "sound.py" not in part.why


# -- what a run says about source ------------------------------------------------------


def test_lines_at_which_tracing_ended_for_good(folder: Path) -> None:
    def at(line: int) -> tuple[Frame, ...]:
        inner = Frame("/v/site-packages/torch/nn/modules/linear.py", 9, "forward")
        return (Frame("model.py", line, "f"), inner)

    events = (
        BreakEvent(frames=at(3)),
        BreakEvent(frames=at(4), skips=True),
        FailureEvent(frames=at(5)),
        GraphEvent(frames=at(6)),
    )
    write(folder / "model.py", "x = 1\n" * 9)
    traced = {"model.py": {"f": (3, 4), "g": (8,)}}
    seen = Observation(events, {}, calls=2, traced=traced)
    evidence = source_reading.run_evidence(seen, {"CG": "lifetimes"})
    file = str(folder / "model.py")
    assert evidence.traced == {file: frozenset({3, 4, 8})}
    assert {line for at, line in evidence.stopped if at == file} == {4, 5}
    assert (evidence.calls, evidence.unseen) == (2, {"CG": "lifetimes"})


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("make.<locals>.Net.forward", "make.Net.forward"),
        ("Net.torch_dynamo_resume_in_forward_at_14", "Net.forward"),
        ("f.<locals>.<listcomp>", "f"),
        ("f.<locals>.<lambda>", "f.<lambda>"),
    ],
)
def test_functions_have_the_names_of_the_source(name: str, plain: str) -> None:
    assert blame.plain_name(name) == plain


# -- where torch.compile is called -----------------------------------------------------


def wrapper(file: str, line: int, calls: int | None, **changes: Any) -> WrapperEvent:
    frames = (Frame(file, line, "main"), Frame("/site-packages/torch/x.py", 1, "c"))
    return WrapperEvent(frames=frames, name="Net", calls=calls, **changes)


SITE = CompileSite("train.py", 10, 12, None, "model", mode="'max-autotune'")


@pytest.mark.parametrize(
    ("seen", "calls"), [([(11, 3), (12, 3)], 6), ([(11, None)], None), ([], None)]
)
def test_site_has_the_calls_of_all_that_it_made(
    folder: Path, seen: list[tuple[int, int | None]], calls: int | None
) -> None:
    events = tuple(wrapper(str(folder / "train.py"), *each) for each in seen)
    observation = Observation(events, {})
    [site] = source_reading.configuration(Reading(sites=(SITE,)), observation)
    assert site == replace(SITE, calls=calls)


def test_site_that_only_the_run_saw_is_listed(folder: Path) -> None:
    write(folder / "other.py", "import torch\nnet = fast(net)\n")
    events = (
        wrapper("other.py", 2, 4, arguments={"mode": "reduce-overhead"}),
        wrapper("other.py", 2, 9, by_torchproof=True),
    )
    observation = Observation(events, {})
    site, seen = source_reading.configuration(Reading(sites=(SITE,)), observation)
    assert site == SITE
    assert (seen.file, seen.line, seen.subject, seen.calls) == ("other.py", 2, "Net", 4)
    assert (seen.mode, seen.backend) == ("'reduce-overhead'", None)
    assert seen.source == "net = fast(net)"


# -- what source says about findings ---------------------------------------------------

PROGRAM = """\
def before(x):
    return x
def f(x):
    y = x + 1
    if y.sum() > 0:
        z = (y
             .item())  # torchproof: ignore[GB101]
        return z
    return y
"""


@pytest.mark.parametrize(
    ("line", "code", "first", "lines", "ignored"),
    [
        (4, "GB101", 3, 5, False),  # the lines around it, within the function
        (9, "GB101", 6, 4, False),
        (6, "GB101", 3, 7, True),  # the comment is where the statement ends
        (7, "GB101", 4, 6, True),
        (6, "GB102", 3, 7, False),
        (5, "GB101", 3, 6, False),  # the statement around it
        (10, "GB101", 7, 4, False),  # the same words in a string
        (99, "GB101", None, 0, False),
        (0, "GB101", None, 0, False),
    ],
)
def test_lines_around_a_place_and_what_a_comment_says(
    folder: Path, line: int, code: str, first: int | None, lines: int, ignored: bool
) -> None:
    text = PROGRAM + 'text = "# torchproof: ignore"\n'
    file = str(write(folder / "model.py", text))
    assert ignores(text, blame.statement(file, line), code) is ignored
    start = (first or 1) - 1
    assert blame.around(file, line) == (
        tuple(text.splitlines()[start : start + lines]),
        first,
    )


def test_static_effort_loads_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "model.py", "import torch\nraise SystemExit('imported')\n")
    program = (
        "import sys, torchproof\n"
        "run = torchproof.check('model.py:make', effort='static')\n"
        "assert run.environment['torch'] is None\n"
        "assert set(run.counts.values()) == {None}\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr or "torch was imported"


# -- what `fix` writes -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("decorator", "codes"),
    [
        ("", {"GB101", "GB104"}),
        ("@in_graph", set()),
        ("@torchproof.in_graph", set()),
        ("@on_host", set()),
        ("@torch.compiler.disable", set()),
        ("@functools.cache", {"GB101", "GB104"}),
    ],
)
def test_what_runs_beside_the_graph_is_not_suspected(
    folder: Path, decorator: str, codes: set[str]
) -> None:
    file = write(
        folder / "model.py",
        f"""
        import functools
        import torch
        import torchproof
        from torchproof import in_graph, on_host


        {decorator}
        def shown(h):
            print("sum", h.sum().item())


        class Net(torch.nn.Module):
            def forward(self, x):
                shown(x)
                return x
        """,
    )
    for roots in (["Net.forward"], ["Net.forward", "shown"]):
        reading = suspicions.read([file], roots={str(file): roots})
        assert {each.finding.code for each in reading.suspicions} >= codes
        assert codes or not reading.suspicions


@pytest.mark.parametrize(
    ("traced", "text", "reached"),
    [
        ({"f": (3,)}, "def f(x):\n    return x\n", True),
        ({"g": (3,)}, "def f(x):\n    return x\n", False),
        ({"g": (3,)}, "def h(x):\n    return x\n", True),  # it is no longer there
        ({"g": (3,)}, "import torchproof\n@torchproof.in_graph\ndef f(x): 0\n", True),
        (None, "def f(x):\n    return x\n", True),
    ],
)
def test_whether_a_run_got_to_the_function_of_a_finding(
    folder: Path, traced: Any, text: str, reached: bool
) -> None:
    file = write(folder / "model.py", text)
    lines = None if traced is None else {str(file): traced}
    observation = Observation((), {}, traced=lines)
    found = replace(FOUND, owner="user")
    assert source_reading.is_reached(found, observation) is reached
    assert source_reading.is_reached(replace(found, kind="recompile"), observation)


def test_several_processes_read_a_folder_as_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = "    def forward(self, x):\n        return x.tolist()\n"
    for name in ("c.py", "a.py", "b.py"):
        text = f"import torch\nclass Net(torch.nn.Module):\n{forward}"
        (tmp_path / name).write_text(text)
    (tmp_path / "broken.py").write_text("import torch\ndef\n")
    monkeypatch.setattr(suspicions, "_FILES_PER_TASK", 1)
    alone = suspicions.read([tmp_path])
    monkeypatch.setattr(suspicions, "_FILES_FOR_ONE_PROCESS", 1)
    progress: list[str] = []
    assert suspicions.read([tmp_path], progress=progress.append) == alone
    assert [Path(s.finding.file or "").name for s in alone.suspicions] == [
        "a.py",
        "b.py",
        "c.py",
    ]
    assert len(progress) == 4


def test_a_process_that_ends_leaves_its_files_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import torch\n")
    monkeypatch.setattr(suspicions, "_FILES_PER_TASK", 1)
    monkeypatch.setattr(suspicions, "_FILES_FOR_ONE_PROCESS", 1)
    command = ("-c", "raise SystemExit(3)")
    monkeypatch.setattr(suspicions, "_worker", lambda: spawn(*command))
    reading = suspicions.read([tmp_path])
    assert reading.files == 2 and not reading.suspicions
    assert [Path(each.split(" and ")[0]).name for each in reading.crashes] == [
        "a.py",
        "b.py",
    ]
    assert all("exit code 3" in each for each in reading.crashes)
