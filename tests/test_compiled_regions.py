"""The place of a finding lies inside the compiled region, whoever calls it and how."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.observe.capture import observe as read
from torchproof.records.run import Finding, Frame
from torchproof.records.stacks import starts_with
from torchproof.targets.options import Options
from torchproof.targets.target import parse

# Each function has a break of its own, so that a finding says how it was reached.
LIBRARY = """\
import functools
import logging
import torch

log = logging.getLogger("fakelib")


def noisy(x, name):
    log.warning(name)  # break
    return x + 1


def wrapped(forward):
    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        return forward(self, *args, **kwargs)

    return wrapper


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    @wrapped
    def forward(self, x, labels=None):
        h = self.layer(x)
        log.warning("model")  # model
        return h.sum() if labels is None else (h - labels).sum()


class Clean(Model):
    def forward(self, x):
        return self.layer(x).sum()


def function(x):
    x = x.sin()
    log.warning("function")  # function
    return x.cos()


def apply(f, x):
    return f(x.sin()).cos()


def trains(model, batches):
    for batch in batches:
        model(**batch).backward()  # the library calls what is compiled
"""


def line_of(text: str, mark: str) -> int:
    [line] = [n for n, each in enumerate(text.splitlines(), 1) if each.endswith(mark)]
    return line


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed package: `fakelib`, in a folder named as pip names it."""
    folder = tmp_path / "site-packages" / "fakelib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(LIBRARY)
    return folder / "__init__.py"


def script(package: Path, body: str, name: str = "script.py") -> Path:
    head = f"import sys\nsys.path.insert(0, {str(package.parents[1])!r})\n"
    path = package.parents[2] / name
    path.write_text(head + "import torch\nimport fakelib\n" + textwrap.dedent(body))
    return path


def breaks(findings: list[Finding]) -> list[Finding]:
    kinds = {"graph_break", "skipped_frame", "compile_error"}
    return [f for f in findings if f.kind in kinds]


def found_by_way(
    observe_all: Any, package: Path, bodies: dict[str, str]
) -> dict[str, list[Finding]]:
    """The open breaks of each script; all of them run in one process."""
    paths = [
        script(package, body, f"script{number}.py")
        for number, body in enumerate(bodies.values())
    ]
    observations = observe_all([(str(path), {}) for path in paths])
    return {
        way: [f for f in breaks(rules.check(seen)) if f.status == "open"]
        for way, seen in zip(bodies, observations, strict=True)
    }


CALLS = {
    "module": "torch.compile(fakelib.Model(), backend='eager')(x)",
    "in place": "m = fakelib.Model(); m.compile(backend='eager'); m(x)",
    "bound method": "torch.compile(fakelib.Model().forward, backend='eager')(x)",
    "function": "torch.compile(fakelib.function, backend='eager')(x)",
    "partial": (
        "import functools\n"
        "torch.compile(functools.partial(fakelib.function), backend='eager')(x)"
    ),
    "decorated by torch": (
        "torch.compile(torch.no_grad()(fakelib.function), backend='eager')(x)"
    ),
    "thread": (
        "import threading\n"
        "c = torch.compile(fakelib.Model(), backend='eager')\n"
        "t = threading.Thread(target=lambda: c(x)); t.start(); t.join()"
    ),
    "called by a library": (
        "c = torch.compile(fakelib.Model(), backend='eager')\n"
        "fakelib.trains(c, [dict(x=x, labels=x)])"
    ),
    "same name": (
        "c = torch.compile(fakelib.function, backend='eager')\n"
        "def function(x):\n"
        "    return c(x)\n"
        "function(x)"
    ),
    "inside a disabled function": (
        "c = torch.compile(fakelib.Model(), backend='eager')\n"
        "@torch.compiler.disable\n"
        "def quiet(x):\n"
        "    return c(x)\n"
        "@torch.compile(backend='eager')\n"
        "def outer(x):\n"
        "    return quiet(x + 1)  # asked for\n"
        "outer(x)"
    ),
}


def test_a_caller_is_never_the_place(package: Path, observe_all: Any) -> None:
    at = line_of(LIBRARY, "# model"), line_of(LIBRARY, "# function")
    head = "def main():\n    x = torch.randn(3, 4)\n"
    bodies = {
        way: f"{head}{textwrap.indent(call, '    ')}\nmain()\n"
        for way, call in CALLS.items()
    }
    for way, findings in found_by_way(observe_all, package, bodies).items():
        assert findings, way
        for finding in findings:
            assert finding.file == str(package) and finding.line in at, way
            assert finding.owner == "library"
            assert finding.function in {"Model.forward", "function"}
            assert any("script" in line for line in finding.evidence)
            assert "ignore_logging_functions.add(fakelib.log.warning)" in finding.fix


USERS = {
    "inlined": """\
        @torch.compile(backend="eager")
        def step(x):
            return fakelib.noisy(x, "a")  # here
        step(torch.randn(3))
        """,
    "a frame of its own after a skip": """\
        def step(x):
            for _ in range(2):
                x = fakelib.function(x)  # here
            return x
        c = torch.compile(step, backend="eager")
        c(torch.randn(3))
        """,
    "after a break of its own": """\
        @torch.compile(backend="eager")
        def step(x):
            torch._dynamo.graph_break()
            y = x.sin()
            return fakelib.noisy(y, "a")  # here
        step(torch.randn(3))
        """,
    "called back by the library": """\
        def mine(x):
            print("mine")  # here
            return x + 1
        c = torch.compile(lambda x: fakelib.apply(mine, x), backend="eager")
        c(torch.randn(3))
        """,
    "an outer region around a compiled module": """\
        c = torch.compile(fakelib.Model(), backend="eager")
        @torch.compile(backend="eager")
        def outer(x):
            return c(x) + 1  # here
        outer(torch.randn(3, 4))
        """,
}


def test_the_users_frame_inside_the_region_is_the_place(
    package: Path, observe_all: Any
) -> None:
    for way, findings in found_by_way(observe_all, package, USERS).items():
        assert findings, way
        for finding in findings:
            file = Path(finding.file or "")
            assert file.parent == package.parents[2] and finding.owner == "user", way
            assert finding.line == line_of(file.read_text(), "# here"), way


FACTORY = """\
def make():
    return fakelib.Model(), [(torch.randn(3, 4),)]

def itself():
    c = torch.compile(fakelib.Model(), backend="eager")
    def step(x):
        return c(x)  # a caller
    return step, [(torch.randn(3, 4),)]

def clean():
    return fakelib.Clean(), [(torch.randn(3, 4),)]
"""
FAILS = """\
def main():
    c = torch.compile(fakelib.function, backend="eager", fullgraph=True)
    c(torch.randn(3))
try:
    main()
except Exception:
    pass
"""


def test_a_factory_a_script_and_as_written_agree(
    package: Path, observe_all: Any
) -> None:
    plain = "torch.compile(fakelib.Model(), backend='eager')(torch.randn(3, 4))\n"
    factory = script(package, FACTORY, "factory.py")
    targets = [
        (str(script(package, plain)), {}),
        (f"{factory}:make", {}),
        (f"{factory}:itself", {"as_written": True}),
        (f"{factory}:clean", {}),
        (str(script(package, FAILS, "fails.py")), {}),
    ]
    *same, clean, failed = [rules.check(seen) for seen in observe_all(targets)]
    places = [
        [(f.code, f.file, f.line, f.function) for f in breaks(findings)]
        for findings in same
    ]
    assert len(places[0]) == 1 and places == [places[0]] * 3
    assert clean == []
    [error] = [f for f in failed if f.kind == "compile_error"]
    assert (error.file, error.line) == (str(package), line_of(LIBRARY, "# function"))
    assert error.owner == "library" and error.function == "function"


def test_a_trace_gives_the_same_places(package: Path, observe_all: Any) -> None:
    body = "\n".join(
        CALLS[way] for way in ("module", "in place", "function", "called by a library")
    )
    path = script(package, f"x = torch.randn(3, 4)\n{body}\n")
    [live] = [rules.check(seen) for seen in observe_all([(str(path), {})])]
    folder = package.parents[2] / "trace"
    folder.mkdir()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_record, args=(str(path), str(folder)))
    process.start()
    process.join(60)
    traced = rules.check(read(parse(f"trace:{folder}"), Options(), lambda text: None))
    assert {(f.file, f.line) for f in breaks(live)} == {
        (f.file, f.line) for f in breaks(traced)
    }
    assert all(f.file == str(package) for f in breaks(traced))


def test_a_test_that_calls_it_is_not_the_place(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pytest plugin watches: the call is in the test itself."""
    import torch

    from torchproof.checking.budget import Watch

    monkeypatch.syspath_prepend(str(package.parents[1]))
    library = importlib.import_module("fakelib")
    watch = Watch()
    watch.start()
    try:
        with torch.no_grad():
            torch.compile(library.Model(), backend="eager")(torch.randn(3, 4))
        run = watch.run("a test")
    finally:
        watch.stop()
        sys.modules.pop("fakelib")
        torch._dynamo.reset()
    [broken] = breaks(list(run.findings))
    assert (broken.file, broken.owner) == (str(package), "library")
    assert any(Path(__file__).name in line for line in broken.evidence)


def _record(program: str, folder: str) -> None:
    import os
    import runpy

    import torch

    os.environ["TORCH_TRACE"] = folder
    torch._logging._internal.LOG_TRACE_HANDLER = None
    torch._logging._internal._init_logs()
    runpy.run_path(program, run_name="__main__")


def test_callers_are_found_where_torch_shows_one_of_two_names() -> None:
    main, step = Frame("/u.py", 9, "main"), Frame("/u.py", 5, "step")
    inner = Frame("/lib.py", 3, "step")
    assert starts_with((main, inner), (main, step)) == 1
    assert starts_with((main, inner), (main, step, inner)) == 2
    assert starts_with((inner,), (main, step)) == 0
