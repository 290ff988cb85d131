"""Which lines Dynamo traced, and what was compiled, as a run tells it."""

from __future__ import annotations

from types import CodeType

import pytest
import torch

from torchproof.observe import capture, gathering
from torchproof.process import Followed
from torchproof.records.options import Options
from torchproof.targets.introspect import forwards
from torchproof.targets.target import Target
from torchproof.torch_private import traced_lines

TARGET = Target("model.py:make", "factory", "model.py")


def chosen(x: torch.Tensor, doubles: bool) -> torch.Tensor:
    if doubles:
        return x * 2
    return x + 1


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return chosen(x, False)


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.same, self.act = Inner(), Inner(), torch.nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.inner(x))


def test_only_the_side_that_was_taken_is_traced() -> None:
    seen: set[tuple[str, int]] = set()

    def note(code: CodeType, line: int) -> None:
        seen.add((code.co_qualname, line - code.co_firstlineno))

    with traced_lines.traced_lines(note):
        torch.compile(Outer(), backend="eager")(torch.ones(2))
    assert {("chosen", 1), ("chosen", 3), ("Inner.forward", 1)} <= seen
    assert ("chosen", 2) not in seen
    before = len(seen)
    torch._dynamo.reset()
    torch.compile(chosen, backend="eager")(torch.ones(2), True)
    assert len(seen) == before, "the hook stays in place"


def test_what_a_module_may_run_is_the_forward_of_each_class_in_it() -> None:
    model, own = Outer(), ["Inner.forward", "Outer.forward"]
    found = forwards(model, Outer.forward.__code__)
    assert [name for file, name in found if file == __file__] == own
    assert forwards(chosen, chosen.__code__) == [(__file__, "chosen")]
    # Module.compile() hands over the module's bound call.
    assert forwards(model._call_impl, Outer.forward.__code__) == found

    class Odd:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    model.act = type("Act", (torch.nn.Module,), {"forward": Odd()})()
    assert [name for _, name in forwards(model, Outer.forward.__code__)] == own


def test_lines_of_all_entries_hold_together_and_those_of_torch_are_left_out() -> None:
    torch_file = torch.nn.functional.__file__
    entries = [
        {"kind": "environment", "torch": "2"},
        {"kind": "lines", "files": {"/a/m.py": {"f": [2, 3]}, torch_file: {"g": [1]}}},
        {"kind": "lines", "files": {"/a/m.py": {"f": [3, 5], "h": [9]}}},
    ]
    seen = gathering.gather(Followed(entries), TARGET)
    assert seen.traced == {"/a/m.py": {"f": (2, 3, 5), "h": (9,)}}


def test_a_trace_says_nothing_about_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "read_folder", lambda folder: [])
    target = Target("trace:t", "trace", "t")
    assert capture.observe(target, Options(), print).traced is None
