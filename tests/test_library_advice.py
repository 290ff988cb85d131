"""What a script can do about a library's code: each fix, followed, leaves nothing."""

from __future__ import annotations

import sys
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
import torch
import fakelib
model = fakelib.{0}()
{1}
compiled = torch.compile(model, backend="eager")
for _ in range(3):
    compiled(torch.ones(2, 4))
"""
NET = """\
import torch
import fakelib
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
SIZES = """\
import torch
import fakelib
compiled = torch.compile(fakelib.Listing(), backend="eager")
for size in {0}:
    batch = {{"x": torch.ones(size, 4), "y": torch.ones(size)}}
    {1}
    compiled(**batch)
"""
CAPTURE = "torch._dynamo.config.capture_scalar_outputs = True"
PARTS = "for layer in model.layers: layer.compile(backend='eager')"
MARKS = [f'torch._dynamo.maybe_mark_dynamic(batch["{name}"], 0)' for name in ("x", "y")]
SCRIPTS = {
    "lazy": RUN.format("Lazy", ""),
    "locking": RUN.format("Locking", ""),
    "counting": RUN.format("Counting", ""),
    "dropping": RUN.format("Dropping", ""),
    "twice": RUN.format("Twice", ""),
    "wrapping": NET.format("Wrapping"),
    "pair": NET.format("Pair"),
    "sizes": SIZES.format((4, 3, 2), ""),
    "marked sizes": SIZES.format((4, 3, 2), "; ".join(MARKS)),
}
# The same scripts after their advice was followed: nothing is left.
CURED = {
    "lazy": RUN.format("Lazy", "model(torch.ones(2, 4))"),
    "counting": RUN.format("Counting", CAPTURE),
    "dropping": RUN.format("Dropping", PARTS).replace(
        "torch.compile(model, backend=", "model  # ("
    ),
    "sizes": SIZES.format((4, 4, 4), MARKS[1]),
}
Found = dict[str, list[Finding]]


@pytest.fixture(scope="module")
def found(observe_all: Any, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The findings of each script, all of them run in one process."""
    folder = tmp_path_factory.mktemp("scripts")
    package = folder / "site-packages" / "fakelib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    head = f"import sys\nsys.path.insert(0, {str(package.parent)!r})\n"
    scripts = SCRIPTS | {f"cured {name}": text for name, text in CURED.items()}
    targets = []
    for number, text in enumerate(scripts.values()):
        path = folder / f"script_{number}.py"
        path.write_text(head + text)
        targets.append((str(path), {}))
    observed = observe_all(targets)
    return dict(zip(scripts, map(rules.check, observed), strict=True))


ONCE = " model once "


def breaks(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.kind in {"graph_break", "skipped_frame"}]


@pytest.mark.parametrize("name", CURED)
def test_advice_leaves_nothing(found: Found, name: str) -> None:
    assert found[name] and found[f"cured {name}"] == []


def test_setup_in_the_first_call_is_done_before_compiling(found: Found) -> None:
    [lazy] = breaks(found["lazy"])
    assert (lazy.owner, lazy.severity) == ("library", "low")
    assert ONCE in lazy.fix


def test_a_break_in_every_call_is_no_setup(found: Found) -> None:
    *others, locking = sorted(breaks(found["locking"]), key=lambda f: f.line or 0)
    assert locking.severity == "high" and ONCE not in locking.fix
    if sys.version_info < (3, 12):  # since then comprehensions are inlined
        [comprehension] = others
        assert f"__init__.py:{locking.line}" in comprehension.fix


def test_a_setting_keeps_a_librarys_line_in_the_graph(found: Found) -> None:
    [counting] = found["counting"]
    assert CAPTURE in counting.fix


def test_a_skipped_method_is_named_and_not_its_decorator(found: Found) -> None:
    [skipped] = found["dropping"]
    assert skipped.kind == "skipped_frame"
    assert "Dropping.forward" in skipped.message and "wrapper" not in skipped.message
    assert "module.compile()" in skipped.fix


def test_a_decorator_that_breaks_cut_off_is_not_to_be_created_once(
    found: Found,
) -> None:
    [identity] = [f for f in found["twice"] if f.code == "RC215"]
    assert identity.owner == "library"
    assert "graph break" in identity.fix and "outside" not in identity.fix


def test_a_break_that_every_forward_reports_is_one_finding(found: Found) -> None:
    [counting] = found["wrapping"]
    assert (counting.owner, counting.code) == ("user", "GB101")
    assert "`self.inner(x + 1)` (inside fakelib)" in counting.message
    assert (counting.count, counting.steps) == (3, 3)


def test_two_breaks_behind_one_line_are_two_findings(found: Found) -> None:
    pair = found["pair"]
    assert all("`self.inner(x + 1)`" in f.message for f in pair)
    assert len({f.cause for f in pair}) == len(pair) == 2
    assert [(f.count, f.steps) for f in pair] == [(3, 3), (3, 3)]


def test_a_size_that_the_library_fixes_is_not_to_be_marked(found: Found) -> None:
    [recompile] = [f for f in found["sizes"] if f.kind == "recompile"]
    assert MARKS[0] not in recompile.fix and "drop_last=True" in recompile.fix
    # Marked as well, it is said that the library fixes it, and where.
    [fixed] = [f for f in found["marked sizes"] if f.kind == "specialization"]
    assert fixed.owner == "library" and "drop_last=True" in fixed.fix
