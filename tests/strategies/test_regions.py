"""Repeated blocks: found by structure and by how they are called, not by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchproof.records.run import UserError
from torchproof.strategies.plan import Plan
from torchproof.strategies.strategy import NotApplicable, parse
from torchproof.targets.workloads import gpt, nanovlm

X = torch.randn(3, 8)


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


class OtherBlock(Block):
    pass


class Net(nn.Module):
    """Whatever `flow(self, x)` makes of the given parts."""

    def __init__(self, flow: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.flow = flow
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.flow(self, x)


def one_after_the_other(net: Any, x: Tensor) -> Tensor:
    for block in net.blocks:
        x = block(x)
    return x


def blocks(*parts: nn.Module) -> nn.ModuleList:
    return nn.ModuleList(parts)


def many(kind: type[nn.Module], count: int, *given: Any) -> nn.ModuleList:
    return nn.ModuleList(kind(*given) for _ in range(count))


def plan(net: nn.Module, *calls: Any) -> Plan:
    return parse("regional").plan(net, calls or [(X,)])


def paths(net: nn.Module, *calls: Any) -> list[tuple[str, ...]]:
    return [region.paths for region in plan(net, *calls).regions]


def numbered(name: str, *numbers: int) -> tuple[str, ...]:
    return tuple(f"{name}.{number}" for number in numbers)


# -- what is a block -------------------------------------------------------------------


def test_blocks_held_as_attributes_with_arithmetic_in_between() -> None:
    net = Net(
        lambda net, x: net.second(torch.relu(net.first(x))[:, :8] * 2),
        first=Block(),
        second=Block(),
    )
    assert paths(net) == [("first", "second")]


class PairBlock(Block):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        return super().forward(x), {"weights": x.sum()}


class Writer(Block):
    def forward(self, x: Tensor) -> None:  # type: ignore[override]
        x[:, :4] = self.inner(x)[:, :4]


def written(net: Any, x: Tensor) -> Tensor:
    x = x.clone()
    net.a(x), net.b(x)
    return x


@dataclass
class State:
    x: Tensor


class Stateful(Block):
    def forward(self, state: State) -> State:  # type: ignore[override]
        return State(super().forward(state.x))


FORMS: dict[str, tuple[type[nn.Module], Callable[[Any, Tensor], Tensor]]] = {
    "several answers": (PairBlock, lambda net, x: net.b(net.a(x)[0])[0]),
    "writes into its input": (Writer, written),
    "hands on a record": (Stateful, lambda net, x: net.b(net.a(State(x))).x),
}


@pytest.mark.parametrize("name", FORMS)
def test_blocks_of_any_form(name: str) -> None:
    kind, flow = FORMS[name]
    with torch.no_grad():
        assert paths(Net(flow, a=kind(), b=kind())) == [("a", "b")]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks(reentrant: bool) -> None:
    def flow(net: Any, x: Tensor) -> Tensor:
        for block in net.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)  # type: ignore[assignment]
        return x

    net = Net(flow, blocks=many(Block, 3))
    assert paths(net, (X.clone().requires_grad_(),)) == [numbered("blocks", 0, 1, 2)]


def test_outermost_level_wins() -> None:
    stages = nn.Sequential(*(nn.Sequential(*many(Block, 2)) for _ in range(3)))
    assert paths(Net(lambda net, x: net.stages(x), stages=stages)) == [
        numbered("stages", 0, 1, 2)
    ]


def test_one_block_called_again_and_again() -> None:
    def flow(net: Any, x: Tensor) -> Tensor:
        for _ in range(4):
            x = net.shared(x)
        return x

    assert paths(Net(flow, shared=Block())) == [("shared",)]


def test_loop_over_a_whole_model_leaves_its_blocks_the_regions() -> None:
    def generate(net: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = net.inner(x)
        return x

    net = Net(generate, inner=Net(one_after_the_other, blocks=many(Block, 2)))
    assert paths(net) == [numbered("inner.blocks", 0, 1)]


# -- what is none ----------------------------------------------------------------------


def test_widths_part_blocks_of_one_class() -> None:
    def flow(net: Any, x: Tensor) -> Tensor:
        return one_after_the_other(Wide, one_after_the_other(net, x).repeat(1, 2))

    class Wide:
        blocks: nn.ModuleList

    net = Net(flow, blocks=many(Block, 2), wide=many(Block, 2, 16))
    Wide.blocks = net.wide
    found = plan(net)
    assert [region.paths for region in found.regions] == [
        numbered("blocks", 0, 1),
        numbered("wide", 0, 1),
    ]
    assert [r.name for r in found.regions] == ["Block at blocks.0", "Block at wide.0"]


def test_classes_part_blocks_of_one_shape() -> None:
    held = blocks(Block(), OtherBlock(), Block(), OtherBlock())
    assert paths(Net(one_after_the_other, blocks=held)) == [
        numbered("blocks", 0, 2),
        numbered("blocks", 1, 3),
    ]


def test_a_parametrization_parts_blocks_of_one_class() -> None:
    odd = Block()
    odd.inner = nn.utils.parametrizations.weight_norm(odd.inner)
    held = blocks(Block(), odd, Block())
    assert paths(Net(one_after_the_other, blocks=held)) == [numbered("blocks", 0, 2)]


def mixture(net: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row, expert in enumerate(net.experts):
        out.index_add_(0, torch.tensor([row]), expert(x[row : row + 1]))
    return out


NO_BLOCKS = {
    "experts": Net(mixture, experts=many(Block, 3)),
    "heads": Net(
        lambda net, x: torch.cat([h(x) for h in net.heads], -1), heads=many(Block, 3)
    ),
    "single operations": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
    "two classes": Net(one_after_the_other, blocks=blocks(Block(), OtherBlock())),
    "never called": Net(lambda net, x: net.a(x), a=Block(), b=Block()),
}


@pytest.mark.parametrize("name", NO_BLOCKS)
def test_no_repeated_blocks(name: str) -> None:
    with pytest.raises(
        NotApplicable, match=rf"\bblocks\b.*{type(NO_BLOCKS[name]).__name__}"
    ):
        plan(NO_BLOCKS[name])


def test_equal_towers_side_by_side_have_their_blocks_compiled() -> None:
    def tower() -> Net:
        return Net(one_after_the_other, blocks=many(Block, 2))

    net = Net(lambda net, x: net.left(x) @ net.right(x).T, left=tower(), right=tower())
    assert paths(net) == [
        (*numbered("left.blocks", 0, 1), *numbered("right.blocks", 0, 1))
    ]


def test_plain_function_has_no_blocks_and_no_method() -> None:
    with pytest.raises(NotApplicable, match=r"\bmodule\b"):
        parse("regional").plan(lambda x: x, [(X,)])
    with pytest.raises(UserError, match=r"\bmethod"):
        parse("core").apply(lambda x: x, [(X,)])


# -- on models -------------------------------------------------------------------------


def test_workloads() -> None:
    model, calls = nanovlm.make()
    found = plan(model, calls[0])
    assert [(region.name, region.place) for region in found.regions] == [
        ("Block", "MODEL.vision.blocks"),
        ("RotaryBlock", "MODEL.blocks"),
    ]
    assert found.note is not None
    assert "2 x Block, 2 x RotaryBlock; eager: embedding" in found.note
    model, calls = gpt.make()
    assert paths(model, calls[0]) == [numbered("blocks", 0, 1, 2, 3)]


def small(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    import transformers as library

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    wide = sizes | {"intermediate_size": 64}
    words = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 99}
    ids = {"input_ids": torch.randint(3, 90, (2, 6))}
    if kind == "gpt2":
        config = library.GPT2Config(n_embd=32, n_layer=3, n_head=4, **words)
        return library.GPT2LMHeadModel(config), ids
    if kind == "llama":
        return library.LlamaForCausalLM(library.LlamaConfig(**wide, **words)), ids
    if kind == "vit":
        config = library.ViTConfig(**wide, image_size=16, patch_size=8)
        return library.ViTModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}
    config = library.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, vocab_size=99
    )
    model = library.T5ForConditionalGeneration(config)
    return model, ids | {"decoder_input_ids": ids["input_ids"]}


PLACES = {
    "gpt2": ["MODEL.transformer.h"],
    "llama": ["MODEL.model.layers"],
    "vit": ["MODEL.layers"],
    # The first block of each stack has a table of positions that the others lack.
    "t5": ["MODEL.encoder.block[1:]", "MODEL.decoder.block[1:]"],
}


@pytest.mark.parametrize("kind", PLACES)
def test_models_of_a_library(kind: str) -> None:
    pytest.importorskip("transformers")
    model, call = small(kind)
    assert [region.place for region in plan(model, call).regions] == PLACES[kind]


# -- as Python -------------------------------------------------------------------------


def odd_names(net: Any, x: Tensor) -> Tensor:
    for name in ("first", "two words"):
        x = net.held[name](x)
    return x


PYTHON = {
    "a whole list": (
        Net(one_after_the_other, blocks=many(Block, 3)),
        "MODEL.blocks",
    ),
    "the end of a list": (
        Net(one_after_the_other, blocks=blocks(OtherBlock(), Block(), Block())),
        "MODEL.blocks[1:]",
    ),
    "the middle of a list": (
        nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8)),
        "MODEL[1:3]",
    ),
    "here and there": (
        Net(one_after_the_other, blocks=blocks(Block(), OtherBlock(), Block())),
        "(MODEL.blocks[0], MODEL.blocks[2])",
    ),
    "lists and more": (
        Net(
            lambda net, x: one_after_the_other(net, net.first(x)),
            first=Block(),
            blocks=many(Block, 2),
        ),
        "(MODEL.first, *MODEL.blocks)",
    ),
    "names that are no names": (
        Net(
            odd_names,
            held=nn.ModuleDict({"first": Block(), "two words": Block()}),
        ),
        "(MODEL.held.first, MODEL.get_submodule('held.two words'))",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_blocks_as_one_writes_them(name: str) -> None:
    net, place = PYTHON[name]
    (region,) = plan(net).regions
    assert region.place == place
    held = eval(place, {"MODEL": net})
    assert list(held) == [net.get_submodule(path) for path in region.paths]


def test_watching_leaves_no_hook_behind() -> None:
    net = Net(one_after_the_other, blocks=many(Block, 2))
    plan(net)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())
