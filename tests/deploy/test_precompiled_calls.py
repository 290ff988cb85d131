"""What calls without tracing are held to, shown without compiling anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fabricated import details_of
from torch import nn

from torchproof.packs.deploy import precompiled
from torchproof.records import schema
from torchproof.runtime import production
from torchproof.runtime.compiled_forward import CompiledForward
from torchproof.runtime.loading import example_inputs, precompiled_calls
from torchproof.runtime.loading.pack_details import (
    CachesDetails,
    CallInputs,
    PackedCall,
    TrainingState,
)
from torchproof.torch_private.dynamo.size_marks import marks_of
from torchproof.torch_private.precompile import guard_expressions


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = 2.0
        self.unused = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


def entry_of(model: nn.Module) -> CompiledForward:
    return production.compiled_forward_of(
        production.compile(model, strategy="full", backend="eager")
    )


def test_code_is_known_by_what_it_does() -> None:
    marks = []
    for text in ("x + 1", "(\n\n    x + 1)", "x + 2"):
        made: dict[str, Any] = {}
        exec(f"def one(x): return {text}", made)
        marks.append(guard_expressions.code_mark(made["one"].__code__))
    assert marks[0] == marks[1] != marks[2]


# -- inputs ----------------------------------------------------------------------------


def test_made_inputs_have_the_marks_of_the_originals() -> None:
    original, plain = torch.ones(4, 5), torch.ones(2)
    torch._dynamo.mark_dynamic(original, 0, min=2, max=9)
    torch._dynamo.maybe_mark_dynamic(original, 1)
    written = json.dumps(schema.to_plain(example_inputs.describe((original, plain))))
    made = example_inputs.make(schema.build(CallInputs, json.loads(written)))
    assert marks_of(made[0]) == marks_of(original) != {}
    assert marks_of(made[1]) == {}


class Broken(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return super().forward(x)


def test_a_call_with_a_graph_break_is_packed_without_an_entry(tmp_path: Path) -> None:
    inputs = example_inputs.describe((torch.ones(3, 4),))
    call = PackedCall(inputs, TrainingState(training=True), gradients=False)
    model = production.compile(Broken(), strategy="full")  # tracing ends first
    entry = production.compiled_forward_of(model)
    written = precompiled._written(entry, call, tmp_path, {})
    assert written.file is None and "Unsupported" in (written.why_not or "")
    assert not list(tmp_path.iterdir())


# -- what guards overlook --------------------------------------------------------------


def test_hooks_and_methods_inside_a_model_are_seen() -> None:
    model = Net()
    model.register_forward_hook(lambda *_: None)  # runs outside of compiled code
    assert precompiled_calls.module_override(entry_of(model)) is None
    model.inner.register_forward_pre_hook(lambda *_: None)
    why = precompiled_calls.module_override(entry_of(model)) or ""
    assert "inner" in why and "hooks" in why
    model = Net()
    model.inner.forward = torch.tanh  # type: ignore[method-assign]
    why = precompiled_calls.module_override(entry_of(model)) or ""
    assert "inner" in why and "forward" in why


def test_a_switch_or_an_attribute_that_differs_is_named() -> None:
    model = Net()
    entry = entry_of(model)
    then = replace(
        schema.build(CachesDetails, details_of(model)),
        switches=precompiled_calls.switches(),
        attributes=precompiled_calls.attributes(model),
    )
    assert precompiled_calls._changed(entry, then) is None
    config: Any = torch._inductor.config
    with config.patch(max_autotune=True):
        reason = precompiled_calls._changed(entry, then)
    assert (
        reason is not None and "torch._inductor.config.max_autotune is True" in reason
    )
    assert precompiled_calls._changed(entry, then) is None  # set back, it is as it was
    model.eval()  # each call has its own mode
    assert precompiled_calls._changed(entry, then) is None
    model.scale = 3.0
    assert "attributes of the model" in (precompiled_calls._changed(entry, then) or "")
    entry.options = type(entry.options)("full+graph", "", 1.0)  # it is traced
    assert "full+graph" in (precompiled_calls.why_none(entry) or "")
