"""Repeated blocks: found by structure and by how they are called, not by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from twins import Block

from torchproof.records.run import UserError
from torchproof.strategies import apply, planning
from torchproof.strategies.plan import Plan
from torchproof.strategies.strategy import NotApplicable, parse
from torchproof.targets.workloads import gpt, nanovlm

X = torch.randn(3, 4)


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


def several_times(net: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = net.inner(x)
    return x


def checkpointed(reentrant: bool) -> Net:
    def flow(net: Any, x: Tensor) -> Tensor:
        for block in net.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)  # type: ignore[assignment]
        return x

    return Net(flow, blocks=many(Block, 3))


def many(kind: type[nn.Module], count: int, *arguments: Any) -> nn.ModuleList:
    return nn.ModuleList(kind(*arguments) for _ in range(count))


def in_order(*parts: nn.Module) -> Net:
    return Net(one_after_the_other, blocks=nn.ModuleList(parts))


def plan(net: nn.Module, *calls: Any) -> Plan:
    return planning.plan(parse("regional"), net, calls or [(X,)])


class PairBlock(Block):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        return super().forward(x), {"weights": x.sum()}


class Writer(Block):
    def forward(self, x: Tensor) -> None:  # type: ignore[override]
        x[:, :2] = self.mix(x)[:, :2]


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


def parametrized() -> Block:
    block = Block()
    block.mix = nn.utils.parametrizations.weight_norm(block.mix)
    return block


def tower() -> Net:
    return in_order(Block(), Block())


def stages() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(*many(Block, 2)) for _ in range(3)))


def widening(net: Any, x: Tensor) -> Tensor:
    x = one_after_the_other(net, x).repeat(1, 2)
    for block in net.wide:
        x = block(x)
    return x


def odd_names(net: Any, x: Tensor) -> Tensor:
    for name in ("first", "two words"):
        x = net.held[name](x)
    return x


# The blocks of each model, as paths; blocks that share code are one text.
BLOCKS: dict[str, tuple[nn.Module, list[str]]] = {
    "attributes, and arithmetic in between": (
        Net(
            lambda net, x: net.second(torch.relu(net.first(x))[:, :4] * 2),
            first=Block(),
            second=Block(),
        ),
        ["first|second"],
    ),
    "several answers": (
        Net(lambda net, x: net.b(net.a(x)[0])[0], a=PairBlock(), b=PairBlock()),
        ["a|b"],
    ),
    "writes into its input": (Net(written, a=Writer(), b=Writer()), ["a|b"]),
    "hands on a record": (
        Net(lambda net, x: net.b(net.a(State(x))).x, a=Stateful(), b=Stateful()),
        ["a|b"],
    ),
    "checkpointed": (checkpointed(False), ["blocks.0|blocks.1|blocks.2"]),
    "checkpointed, reentrant": (checkpointed(True), ["blocks.0|blocks.1|blocks.2"]),
    "the outermost level": (
        Net(lambda net, x: net.stages(x), stages=stages()),
        ["stages.0|stages.1|stages.2"],
    ),
    "one block called several times": (Net(several_times, inner=Block()), ["inner"]),
    "a loop over a whole model": (
        Net(several_times, inner=tower()),
        ["inner.blocks.0|inner.blocks.1"],
    ),
    "two widths": (
        Net(widening, blocks=many(Block, 2), wide=many(Block, 2, 8)),
        ["blocks.0|blocks.1", "wide.0|wide.1"],
    ),
    "two classes": (
        in_order(Block(), OtherBlock(), Block(), OtherBlock()),
        ["blocks.0|blocks.2", "blocks.1|blocks.3"],
    ),
    "one with a parametrization": (
        in_order(Block(), parametrized(), Block()),
        ["blocks.0|blocks.2"],
    ),
    "the end of a list": (
        in_order(OtherBlock(), Block(), Block()),
        ["blocks.1|blocks.2"],
    ),
    "the middle of a list": (
        nn.Sequential(nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 4)),
        ["1|2"],
    ),
    "lists and more": (
        Net(
            lambda net, x: one_after_the_other(net, net.first(x)),
            first=Block(),
            blocks=many(Block, 2),
        ),
        ["first|blocks.0|blocks.1"],
    ),
    "names that are no names": (
        Net(odd_names, held=nn.ModuleDict({"first": Block(), "two words": Block()})),
        ["held.first|held.two words"],
    ),
    "equal towers side by side": (
        Net(lambda net, x: net.left(x) @ net.right(x).T, left=tower(), right=tower()),
        ["left.blocks.0|left.blocks.1|right.blocks.0|right.blocks.1"],
    ),
}


# As one writes the blocks in Python; of the other rows, no text is expected.
PLACES = {
    "checkpointed": "MODEL.blocks",
    "the end of a list": "MODEL.blocks[1:]",
    "the middle of a list": "MODEL[1:3]",
    "one with a parametrization": "(MODEL.blocks[0], MODEL.blocks[2])",
    "lists and more": "(MODEL.first, *MODEL.blocks)",
    "names that are no names": (
        "(MODEL.held.first, MODEL.get_submodule('held.two words'))"
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_found_by_structure_and_use(name: str) -> None:
    net, expected = BLOCKS[name]
    x = X.clone().requires_grad_("checkpointed" in name)
    with torch.set_grad_enabled(x.requires_grad):
        regions = plan(net, (x,)).regions
    assert ["|".join(region.paths) for region in regions] == expected
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())
    for region in regions:
        blocks = eval(region.place, {"MODEL": net})
        blocks = [blocks] if isinstance(blocks, Block) else list(blocks)
        assert blocks == [net.get_submodule(path) for path in region.paths]
    if name in PLACES:
        assert [region.place for region in regions] == [PLACES[name]]


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
    "single operations": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
    "two classes": in_order(Block(), OtherBlock()),
    "never called": Net(lambda net, x: net.a(x), a=Block(), b=Block()),
}


@pytest.mark.parametrize("name", NO_BLOCKS)
def test_no_repeated_blocks(name: str) -> None:
    with pytest.raises(
        NotApplicable, match=rf"\bblocks\b.*{type(NO_BLOCKS[name]).__name__}"
    ):
        plan(NO_BLOCKS[name])


def test_plain_function_has_no_blocks_and_no_method() -> None:
    with pytest.raises(NotApplicable, match=r"\bmodule\b"):
        planning.plan(parse("regional"), lambda x: x, [(X,)])
    with pytest.raises(UserError, match=r"\bmethod"):
        apply(parse("core"), lambda x: x, [(X,)])


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
    widths = plan(BLOCKS["two widths"][0]).regions
    assert [r.name for r in widths] == ["Block at blocks.0", "Block at wide.0"]
    model, calls = gpt.make()
    (region,) = plan(model, calls[0]).regions
    assert region.paths == ("blocks.0", "blocks.1", "blocks.2", "blocks.3")


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
    config = library.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, vocab_size=99
    )
    model = library.T5ForConditionalGeneration(config)
    return model, ids | {"decoder_input_ids": ids["input_ids"]}


STACKS = {
    "gpt2": ["MODEL.transformer.h"],
    "llama": ["MODEL.model.layers"],
    # The first block of each stack has a table of positions that the others lack.
    "t5": ["MODEL.encoder.block[1:]", "MODEL.decoder.block[1:]"],
}


@pytest.mark.parametrize("kind", STACKS)
def test_models_of_a_library(kind: str) -> None:
    pytest.importorskip("transformers")
    model, call = small(kind)
    assert [region.place for region in plan(model, call).regions] == STACKS[kind]
