"""The place of a finding lies inside the compiled region, whoever calls it and how."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from installed_library import install, script

from torchproof.checking import rules
from torchproof.records.run import Finding, Frame
from torchproof.records.stacks import starts_with

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


def breaks(findings: Iterable[Finding]) -> list[Finding]:
    kinds = {"graph_break", "skipped_frame", "compile_error"}
    return [f for f in findings if f.kind in kinds]


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
PLAIN = "torch.compile(fakelib.Model(), backend='eager')(torch.randn(3, 4))\n"
FAILS = """\
def main():
    c = torch.compile(fakelib.function, backend="eager", fullgraph=True)
    c(torch.randn(3))
try:
    main()
except Exception:
    pass
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("regions"), LIBRARY)


@pytest.fixture(scope="module")
def found(library: Path, observe_all: Any) -> dict[str, list[Finding]]:
    """The findings of every target, all of them run in one process."""
    head = "def main():\n    x = torch.randn(3, 4)\n"
    scripts = {
        way: f"{head}{textwrap.indent(call, '    ')}\nmain()\n"
        for way, call in CALLS.items()
    }
    scripts |= {"plain": PLAIN, "fails": FAILS, **USERS}
    targets: dict[str, tuple[str, dict[str, Any]]] = {
        way: (str(script(library, body, way.replace(" ", "_"))), {})
        for way, body in scripts.items()
    }
    factory = script(library, FACTORY, "factory")
    targets |= {
        "make": (f"{factory}:make", {}),
        "itself": (f"{factory}:itself", {"as_written": True}),
        "clean": (f"{factory}:clean", {}),
    }
    observed = observe_all(list(targets.values()))
    return dict(zip(targets, map(rules.check, observed), strict=True))


@pytest.mark.parametrize("way", CALLS)
def test_a_caller_is_never_the_place(library: Path, found: Any, way: str) -> None:
    findings = [f for f in breaks(found[way]) if f.status == "open"]
    assert findings
    for finding in findings:
        assert (finding.file, finding.owner) == (str(library), "library")
        at = line_of(LIBRARY, "# model"), line_of(LIBRARY, "# function")
        assert finding.line in at
        assert finding.function in {"Model.forward", "function"}
        assert any(f"{way.replace(' ', '_')}.py" in line for line in finding.evidence)
        assert "ignore_logging_functions.add(fakelib.log.warning)" in finding.fix


@pytest.mark.parametrize("way", USERS)
def test_the_users_frame_inside_the_region_is_the_place(
    library: Path, found: Any, way: str
) -> None:
    findings = [f for f in breaks(found[way]) if f.status == "open"]
    assert findings
    for finding in findings:
        file = library.parents[2] / f"{way.replace(' ', '_')}.py"
        assert (finding.file, finding.owner) == (str(file), "user")
        assert finding.line == line_of(file.read_text(), "# here")


def test_a_factory_a_script_and_as_written_agree(library: Path, found: Any) -> None:
    places = [
        [(f.code, f.file, f.line, f.function) for f in breaks(found[way])]
        for way in ("plain", "make", "itself")
    ]
    assert len(places[0]) == 1 and places == [places[0]] * 3
    assert found["clean"] == []
    [error] = [f for f in found["fails"] if f.kind == "compile_error"]
    assert (error.file, error.line) == (str(library), line_of(LIBRARY, "# function"))
    assert error.owner == "library" and error.function == "function"


def test_a_test_that_calls_it_is_not_the_place(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pytest plugin watches: the call is in the test itself."""
    import torch

    from torchproof.checking.budget import Watch

    monkeypatch.syspath_prepend(str(library.parents[1]))
    fakelib = importlib.import_module("fakelib")
    watch = Watch()
    watch.start()
    try:
        with torch.no_grad():
            torch.compile(fakelib.Model(), backend="eager")(torch.randn(3, 4))
        run = watch.run("a test")
    finally:
        watch.stop()
        sys.modules.pop("fakelib")
        torch._dynamo.reset()
    [broken] = breaks(run.findings)
    assert (broken.file, broken.owner) == (str(library), "library")
    assert any(Path(__file__).name in line for line in broken.evidence)


def test_callers_are_found_where_torch_shows_one_of_two_names() -> None:
    main, step = Frame("/u.py", 9, "main"), Frame("/u.py", 5, "step")
    inner = Frame("/lib.py", 3, "step")
    assert starts_with((main, inner), (main, step)) == 1
    assert starts_with((main, inner), (main, step, inner)) == 2
    assert starts_with((inner,), (main, step)) == 0
