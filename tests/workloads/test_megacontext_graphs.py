"""megacontext with CUDA graphs: every call of a net is in a step, and no tensor that it
returns or holds is in a graph's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchproof.runtime.steps import step
from torchproof.targets.workloads import megacontext, megacontext_step
from torchproof.torch_private.trees import tensors

SIZE = megacontext.SIZES["tiny"]


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Nothing is compiled: the calls and the memory are the same."""
    torch.compiler.set_stance("force_eager")
    step.reset()
    yield
    step.reset()
    torch.compiler.set_stance("default")


class Regions:
    """The outputs of all regions, which would be in the memory of graphs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[Any] = []  # held, so that no address is used twice
        self.is_inside = False
        self.calls: Counter[str] = Counter()  # of each net
        self._run = step.run
        monkeypatch.setattr(step, "run", self.run)

    def run(self, fn: Any, *args: Any) -> Any:
        self.is_inside = True
        self.outputs.append(self._run(fn, *args))
        self.is_inside = False
        return self.outputs[-1]

    def count(self, model: Any) -> None:
        """Counts the calls of the nets, which must be inside of regions."""
        for name, net in model.nets.named_children():
            net.register_forward_pre_hook(lambda _, __, name=name: self._called(name))

    def _called(self, name: str) -> None:
        assert self.is_inside, f"{name} is called outside of a region"
        self.calls[name] += 1

    def memory_of(self, values: dict[str, Any]) -> set[str]:
        """The names of the tensors that are in the memory of graphs."""
        memory = {address(t) for t in tensors(self.outputs)}
        found = {n: t for n, t in values.items() if isinstance(t, Tensor)}
        return {name for name, tensor in found.items() if address(tensor) in memory}


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> Regions:
    return Regions(monkeypatch)


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_training_calls_each_net_in_one_step(regions: Regions) -> None:
    model, calls = megacontext.make(train=True)
    regions.count(model)
    weights = len(list(model.parameters()))
    # Loss, nll and scores are copied, and gradients if they accumulate.
    for number, copies in enumerate((3, 3, 3 + weights)):
        if number < 2:
            model.zero_grad(set_to_none=True)
        output = model(*calls[number])
        output.loss.backward()
        assert regions.calls == {"gist": 2, "base": 1, "lens": 1}
        counts = step.stats().training
        assert (counts.marks, counts.calls, counts.clones) == (1, 4, copies)
        assert counts.reentries == 1  # GistNet, for the second level
        assert regions.memory_of(output._asdict()) == set()
        assert not any(isinstance(value, Tensor) for value in vars(model).values())
        regions.calls.clear()
        step.reset()


def test_session_calls_each_net_in_one_step(regions: Regions) -> None:
    session, calls = megacontext.make()
    regions.count(session)
    count = len(calls[1][0])
    assert 2 * count == SIZE.refocus_every
    # GistNet for both levels of each piece; scores and logits are copied.
    expected = [
        ({"gist": 2, "lens": 1, "base": 1}, 2),
        ({"gist": 2 * count, "base": 1}, 1),
        ({"gist": 2 * count, "lens": 1, "base": 1}, 2),  # a refocus is due
    ]
    for call, (nets, copies) in zip(calls[:3], expected, strict=True):
        logits = session(*call)
        assert regions.calls == nets
        counts = step.stats().inference
        assert (counts.marks, counts.clones) == (1, copies)
        held = {n: t for n, t in vars(session).items() if isinstance(t, Tensor)}
        assert regions.memory_of({**held, "logits": logits}) == set()
        regions.calls.clear()
        step.reset()
    assert set(held) == {"scores", "drift"}


def test_scores_held_without_a_copy_are_found(regions: Regions) -> None:
    session, calls = megacontext.make()
    session.keep = lambda value: value
    session(*calls[0])
    assert regions.memory_of(vars(session)) == {"scores"}


# -- few shapes, the same outputs ------------------------------------------------------


def test_all_widths_and_batches_are_few_shapes() -> None:
    model, calls = megacontext.make(train=True)
    filled = [model.filled(*call) for call in calls]
    assert {tuple(tokens.shape) for tokens, _ in filled} == {(2, 192)}
    assert {entries.shape[2] for _, entries in filled} == {144, 160, 176}
    base = megacontext.SIZES["base"]
    widths = megacontext_step.widths(base, base.length)
    wide = {-(-width // base.grain) * base.grain for width in widths}
    assert wide == {1536, 1664, 1792, 1920}
    with pytest.raises(ValueError, match=r"\bbatch\b.*\b3\b.*\b2\b"):
        model(*megacontext.make(train=True, batch=3)[1][0])


def outputs_and_gradients(model: nn.Module, call: Any) -> list[Tensor]:
    output = model.double()(*call)
    output.loss.backward()
    return [*output, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("number", [0, -1])
def test_padding_changes_neither_outputs_nor_gradients(number: int) -> None:
    model, calls = megacontext.make(train=True)
    plain, _ = megacontext.make(train=True, compiled=False)
    call = calls[number]
    assert (model.filled(*call)[1] != -1).sum() == (call[1] != -1).sum()
    assert len(call[0]) == (1 if number else SIZE.batch)
    ours, theirs = (outputs_and_gradients(each, call) for each in (model, plain))
    assert ours[2].shape == call[1].shape
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_session_with_and_without_graphs_agrees() -> None:
    compiled, calls = megacontext.make()
    plain, _ = megacontext.make(compiled=False)
    assert not getattr(type(plain), "compiles_itself", False)
    for call in calls[:4]:
        torch.testing.assert_close(compiled(*call), plain(*call))
        assert compiled.context.entries == plain.context.entries
    torch.testing.assert_close(compiled.drift, plain.drift)
    assert compiled.drift is not None
