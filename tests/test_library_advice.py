"""What a script can do about a library's code: each fix, followed, leaves nothing."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.records.run import Finding

LIBRARY = """\
import functools
import threading

import torch

lock = threading.Lock()


def decorated(forward):
    @functools.wraps(forward)
    def wrapper(self, x):
        return forward(self, x) * 2

    return wrapper


class Lazy(torch.nn.Module):
    '''Sets itself up in its first call.'''

    ready = False

    def set_up(self):
        with lock:
            self.ready = True

    def forward(self, x):
        x = x.cos()
        if not self.ready:
            self.set_up()
        return x.sin()


class Locking(torch.nn.Module):
    names = {"a": 1, "b": 2}

    def forward(self, x):
        for name in self.names:
            options = {
                key: self.names[key] * x for key in self.names
            }
            with lock:
                x = options[name].sin()
        return x


class Counting(torch.nn.Module):
    def forward(self, x):
        return x * (x > 0).sum().item()


class Block(torch.nn.Module):
    def forward(self, x):
        return x.sin()


class Dropping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))

    @decorated
    def forward(self, x):
        for layer in self.layers:
            if torch.rand([]) < 0.0:
                continue
            x = layer(x)
        return x


class Twice(torch.nn.Module):
    @decorated
    def inner(self, x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    @decorated
    def forward(self, x):
        return self.inner(x) + 1


class Listing(torch.nn.Module):
    def forward(self, **inputs):
        return torch.stack(list(inputs["x"] * 2)).sum() + inputs["y"].sum()


class Wrapping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Counting()

    def forward(self, x):
        return self.layer(x.sin()).cos()


class Pair(torch.nn.Module):
    def forward(self, x):
        x = x * (x > 0).sum().item()
        return x + (x > 1).sum().item()
"""
RUN = """\
    model = fakelib.{0}()
    {1}
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2, 4))
"""


@pytest.fixture
def found(tmp_path: Path, observe: Any) -> Any:
    """`found(body)`: the findings of a script that uses the library."""
    package = tmp_path / "site-packages" / "fakelib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    head = f"import sys\nsys.path.insert(0, {str(package.parent)!r})\n"

    def run(body: str) -> list[Finding]:
        script = tmp_path / "script.py"
        script.write_text(head + "import torch\nimport fakelib\n" + body)
        return rules.check(observe(str(script)))

    return run


def run_of(model: str, before: str = "") -> str:
    return textwrap.dedent(RUN).format(model, before)


ONCE = " model once "


def breaks(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.kind in {"graph_break", "skipped_frame"}]


def test_setup_in_the_first_call_is_done_before_compiling(found: Any) -> None:
    [lazy] = breaks(found(run_of("Lazy")))
    assert (lazy.owner, lazy.severity) == ("library", "low")
    assert ONCE in lazy.fix
    assert found(run_of("Lazy", "model(torch.ones(2, 4))")) == []


@pytest.mark.slow
def test_a_break_in_every_call_is_no_setup(found: Any) -> None:
    findings = breaks(found(run_of("Locking")))
    *others, locking = sorted(findings, key=lambda finding: finding.line)
    assert locking.severity == "high" and ONCE not in locking.fix
    if sys.version_info < (3, 12):  # since then comprehensions are inlined
        [comprehension] = others
        assert f"__init__.py:{locking.line}" in comprehension.fix


def test_a_setting_keeps_a_librarys_line_in_the_graph(found: Any) -> None:
    setting = "torch._dynamo.config.capture_scalar_outputs = True"
    [counting] = found(run_of("Counting"))
    assert setting in counting.fix
    assert found(run_of("Counting", setting)) == []


def test_a_skipped_method_is_named_and_not_its_decorator(found: Any) -> None:
    [skipped] = found(run_of("Dropping"))
    assert skipped.kind == "skipped_frame"
    assert "Dropping.forward" in skipped.message and "wrapper" not in skipped.message
    assert "module.compile()" in skipped.fix
    parts = "for layer in model.layers: layer.compile(backend='eager')"
    body = run_of("Dropping", parts)
    assert found(body.replace("torch.compile(model, backend=", "model  # (")) == []


@pytest.mark.slow
def test_a_decorator_that_breaks_cut_off_is_not_to_be_created_once(found: Any) -> None:
    findings = found(run_of("Twice"))
    [identity] = [f for f in findings if f.code == "RC215"]
    assert identity.owner == "library"
    assert "graph break" in identity.fix and "outside" not in identity.fix


NET = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = fakelib.{0}()

    def forward(self, x):
        x = self.inner(x + 1)
        return x.exp()

compiled = torch.compile(Net(), backend="eager")
for _ in range(3):
    compiled(torch.ones(2, 4))
"""


def test_a_break_that_every_forward_reports_is_one_finding(found: Any) -> None:
    [counting] = found(NET.format("Wrapping"))
    assert (counting.owner, counting.code) == ("user", "GB101")
    assert "`self.inner(x + 1)` (inside fakelib)" in counting.message
    assert (counting.count, counting.steps) == (3, 3)


def test_two_breaks_behind_one_line_are_two_findings(found: Any) -> None:
    findings = found(NET.format("Pair"))
    assert all("`self.inner(x + 1)`" in f.message for f in findings)
    assert len({f.cause for f in findings}) == len(findings) == 2
    assert [(f.count, f.steps) for f in findings] == [(3, 3), (3, 3)]


SIZES = """\
compiled = torch.compile(fakelib.Listing(), backend="eager")
for size in {sizes}:
    batch = {{"x": torch.ones(size, 4), "y": torch.ones(size)}}
    {marks}
    compiled(**batch)
"""


def test_a_size_that_the_library_fixes_is_not_to_be_marked(found: Any) -> None:
    marks = [
        f'torch._dynamo.maybe_mark_dynamic(batch["{name}"], 0)' for name in ("x", "y")
    ]
    body = SIZES.format(sizes=(4, 3, 2), marks="")
    [recompile] = [f for f in found(body) if f.kind == "recompile"]
    assert marks[0] not in recompile.fix
    assert "drop_last=True" in recompile.fix
    # Marked as well, it is said that the library fixes it, and where.
    marked = found(SIZES.format(sizes=(4, 3, 2), marks="; ".join(marks)))
    [fixed] = [f for f in marked if f.kind == "specialization"]
    assert fixed.owner == "library" and "drop_last=True" in fixed.fix
    assert found(SIZES.format(sizes=(4, 4, 4), marks=marks[1])) == []
