"""What a script can do about a library's code: each fix, followed, leaves nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from installed_library import install, script

from torchproof.checking import rules
from torchproof.records import Finding, Setting

LIBRARY = '''\
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
    """Sets itself up in its first call."""

    ready = False

    def set_up(self):
        with lock:
            self.ready = True

    def forward(self, x):
        x = x.cos()
        if not self.ready:
            self.set_up()
        return x.sin()


def install_hooks(module):
    """Does nothing if the module has its hooks."""
    if getattr(module, "has_hooks", False):
        return
    with lock:
        module.has_hooks = True


class Hooked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = HookedLayer()

    def forward(self, x):
        return self.layer(x).cos()


class HookedLayer(torch.nn.Module):
    def forward(self, x):
        install_hooks(self)
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
'''
RUN = """\
model = fakelib.{0}()
{1}
compiled = torch.compile(model, backend="eager")
for _ in range(3):
    compiled(torch.ones(2, 4))
"""
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
SIZES = """\
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
    "lazy inside": NET.format("Lazy"),
    "hooked": RUN.format("Hooked", ""),
    "hooked inside": NET.format("Hooked"),
    "pair": NET.format("Pair"),
    "sizes": SIZES.format((4, 3, 2), ""),
    "marked sizes": SIZES.format((4, 3, 2), "; ".join(MARKS)),
}
# The same scripts after their advice was followed: nothing is left.
CURED = {
    "lazy": RUN.format("Lazy", "model.set_up()"),
    "lazy inside": NET.format("Lazy").replace(
        "Lazy()\n", "Lazy()\n        self.inner.set_up()\n"
    ),
    "hooked": RUN.format("Hooked", "fakelib.install_hooks(model.layer)"),
    "hooked inside": NET.format("Hooked").replace(
        "Hooked()\n", "Hooked()\n        fakelib.install_hooks(self.inner.layer)\n"
    ),
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
    library = install(tmp_path_factory.mktemp("scripts"), LIBRARY)
    scripts = SCRIPTS | {f"cured {name}": text for name, text in CURED.items()}
    paths = [
        script(library, text, f"script_{n}") for n, text in enumerate(scripts.values())
    ]
    observed = observe_all([(str(path), {}) for path in paths])
    return dict(zip(scripts, map(rules.check, observed), strict=True))


_BREAKS = ("graph_break", "skipped_frame")
# The remedies of the scripts: their kind, and what data they have.
REMEDIES = {
    "lazy": ("edit", ()),
    "lazy inside": ("edit", ()),
    "hooked": ("edit", ()),
    "hooked inside": ("edit", ()),
    "counting": ("setting", (Setting("dynamo.capture_scalar_outputs", True),)),
    "dropping": ("none", ()),
}


@pytest.mark.parametrize("name", CURED)
def test_advice_leaves_nothing(found: Found, name: str) -> None:
    assert found[name] and found[f"cured {name}"] == []


@pytest.mark.parametrize("name", REMEDIES)
def test_a_break_in_a_library_has_a_remedy_of_the_user(found: Found, name: str) -> None:
    [remedy] = [f.remedy for f in found[name] if f.kind in _BREAKS]
    assert remedy is not None
    assert (remedy.kind, remedy.settings) == REMEDIES[name]


@pytest.mark.parametrize("name", ["lazy", "lazy inside", "hooked", "hooked inside"])
def test_what_the_first_call_does_is_done_before(found: Found, name: str) -> None:
    """Each line that the edit adds is in the cured script, but for the import."""
    remedies = [f.remedy for f in found[name] if f.kind in _BREAKS]
    for remedy in remedies:
        assert remedy is not None
        new = [line for c in remedy.replacements for line in c.new if line not in c.old]
        called = new[-1].strip()
        assert called in CURED[name]
        hooks = ["from fakelib import install_hooks\n"]
        assert new[:-1] == (hooks if "hooks" in called else [])


# Kind, severity, owner, count and steps of the breaks of each script.
BREAKS = {
    "lazy": [("skipped_frame", "low", "library", 1, 1)],
    "locking": [("skipped_frame", "high", "library", 3, 3)],
    "counting": [("graph_break", "medium", "library", 3, 3)],
    "dropping": [("skipped_frame", "high", "library", 3, 3)],
    # What every forward around it reports is one finding, in the user's line.
    "wrapping": [("graph_break", "high", "user", 3, 3)],
    # Two breaks behind one line of the user.
    "pair": [("graph_break", "high", "user", 3, 3)] * 2,
}
if sys.version_info < (3, 12):  # since then comprehensions are inlined
    BREAKS["locking"] += [("graph_break", "medium", "library", 6, 3)]


@pytest.mark.parametrize("name", BREAKS)
def test_breaks_of_a_library_are_placed_and_counted(found: Found, name: str) -> None:
    breaks = [f for f in found[name] if f.kind in _BREAKS]
    facts = [(f.kind, f.severity, f.owner, f.count, f.steps) for f in breaks]
    assert facts == BREAKS[name]
    assert len({f.cause for f in breaks}) == len(breaks)
    functions = {"lazy": "Lazy.set_up", "dropping": "Dropping.forward"}
    assert breaks[0].function == functions.get(name, breaks[0].function)


def test_a_decorator_that_breaks_cut_off_is_a_consequence_of_the_break(
    found: Found,
) -> None:
    [identity] = [f for f in found["twice"] if f.code == "RC215"]
    assert identity.owner == "library"


def test_a_size_that_the_library_fixes_is_not_to_be_marked(found: Found) -> None:
    [recompile] = [f for f in found["sizes"] if f.kind == "recompile"]
    assert MARKS[0] not in recompile.fix
    # Marked as well, the mark goes.
    [fixed] = [f for f in found["marked sizes"] if f.kind == "specialization"]
    assert fixed.owner == "library" and fixed.remedy is not None
    assert fixed.remedy.kind != "mark"
