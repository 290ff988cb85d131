"""Random sequences of what a program does with a model, beside a twin in eager.

Each rule does one thing to a model that torchproof runs and the same to its twin:
calls, changes of weights, modes, types and hooks, copies, recordings, steps. Outputs,
errors, gradients, buffers and random numbers have to be the same after each rule.
Hypothesis makes a sequence that fails shorter and prints it as code.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy
import pytest
import torch
import torch._dynamo
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from state_runs import PATIENCE_S, seed_all, surroundings
from torch import Tensor, nn
from twins import Block

import torchproof
from torchproof.records.run import UserError
from torchproof.runtime.steps import StepError

MOST_PAIRS = 3
# Arguments of `compile`.
WAYS: dict[str, dict[str, Any]] = {
    "full": {"backend": "eager"},
    "autograd": {"backend": "aot_eager"},
    "regional": {"backend": "aot_eager", "strategy": "regional"},
    "nested": {"backend": "eager", "strategy": "nested"},
    "core": {"backend": "aot_eager", "strategy": "core:blocks"},
    "dynamic": {"backend": "eager", "dynamic": True},
    "background": {"backend": "eager", "wait": False},
    "verified": {"backend": "eager", "verify": 2},
    "limited": {"backend": "aot_eager", "recompile_limit": 2},
    "eager": {"strategy": "eager"},
}
PADDING: dict[str, Any] = {"pad": {0: ("batch",)}, "buckets": [4]}
WITHOUT_GRADIENT = (
    "train=True: no floating-point tensor of the output requires a gradient"
)


# -- the model -------------------------------------------------------------------------


class Net(nn.Module):
    """Looks at its surroundings in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.b = nn.Linear(8, 2)
        self.config = SimpleNamespace(scale=1.0, act="relu")
        self.modes = {"skip": False}
        self.layers = ["a", "b"]
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x) * self.config.scale
        if self.modes["skip"]:
            hidden = hidden + 1
        hidden = self.norm(hidden)
        hidden = hidden.relu() if self.config.act == "relu" else hidden.tanh()
        return self.b(hidden * len(self.layers) + self.table)


class Model(Net):
    """With repeated blocks, random numbers, and a buffer that each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.drop = nn.Dropout(0.25)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(0.25)
        return self.drop(super().forward(self.blocks(x))) + self.calls


def _subtracting(self: Block, x: Tensor) -> Tensor:
    return x - torch.tanh(self.mix(x))


FORWARDS = (Block.forward, _subtracting)


# -- changes ---------------------------------------------------------------------------


@torch.no_grad()
def change_weight(net: Model) -> None:
    net.a.weight.mul_(1.1)


def replace_weight(net: Model) -> None:
    old = net.a.weight
    values = torch.linspace(-1, 1, 32).to(old.dtype)
    net.a.weight = nn.Parameter(values.view(old.shape))


def move_weight(net: Model) -> None:
    net.b.weight.data = net.b.weight.data.clone() * 0.9


def flip_training(net: Model) -> None:
    net.train(not net.training)


def set_scale(net: Model) -> None:
    net.config.scale = 3.0 - net.config.scale


def change_list(net: Model) -> None:
    net.layers.append("c") if len(net.layers) < 3 else net.layers.pop()


def replace_table(net: Model) -> None:
    net.table = net.table + 1


def set_gradient(net: Model) -> None:
    net.b.bias.grad = torch.ones_like(net.b.bias)


def load_other(net: Model) -> None:
    net.load_state_dict({k: v * 0.5 for k, v in net.state_dict().items()})


def replace_part(net: Model) -> None:
    net.a = nn.Sequential(net.a, nn.Tanh()) if type(net.a) is nn.Linear else net.a[0]


def replace_block(net: Model) -> None:
    block = copy.deepcopy(net.blocks[1])
    with torch.no_grad():
        block.mix.weight.neg_()
    net.blocks[1] = block


Change = Callable[[Model], Any]
# Hypothesis prints the name of a change.
CHANGES: dict[str, Change] = {
    **{
        each.__name__: each
        for each in (
            *(change_weight, replace_weight, move_weight, flip_training, set_scale),
            *(change_list, replace_table, set_gradient, load_other, replace_part),
            replace_block,
        )
    },
    "set_activation": lambda net: setattr(
        net.config, "act", "tanh" if net.config.act == "relu" else "relu"
    ),
    "flip_mode": lambda net: net.modes.update(skip=not net.modes["skip"]),
    "drop_gradients": lambda net: net.zero_grad(),
    "zero_gradients": lambda net: net.zero_grad(set_to_none=False),
    "freeze": lambda net: net.a.weight.requires_grad_(not net.a.weight.requires_grad),
    "load": lambda net: net.load_state_dict(copy.deepcopy(net.state_dict())),
    "assign_other": lambda net: net.load_state_dict(
        {k: v * 2 for k, v in net.state_dict().items()}, assign=True
    ),
    "part_to_eval": lambda net: net.norm.eval(),
    "descend": lambda net: torch.optim.SGD(net.parameters(), lr=0.01).step(),
    "write_buffer": lambda net: net.calls.zero_(),
    "to_float32": lambda net: net.float(),
    "to_float64": lambda net: net.to(torch.float64),
    "to_bfloat16": lambda net: net.to("cpu", torch.bfloat16),
}


def _doubled(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] * 2,)


def _shifted(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output + 1


def _halved(module: nn.Module, gradients: Any, *_: Any) -> Any:
    return tuple(each if each is None else each * 0.5 for each in gradients)


HOOKS = {
    "register_forward_pre_hook": _doubled,
    "register_forward_hook": _shifted,
    "register_full_backward_pre_hook": _halved,
    "register_full_backward_hook": _halved,
}
PLACES = ("", "norm", "blocks.0", "a")


def _saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,  # which shares parameters and parts
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": _saved,
    "part of a copy": lambda model: copy.deepcopy(nn.Sequential(model))[0],
}

# What is refused: with a one-line error of torchproof, or with torch's own.
REFUSED: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "deadline": (UserError, lambda m: torchproof.compile(m, deadline=-1)),
    "strategy": (UserError, lambda m: torchproof.compile(m, strategy="fastest")),
    "argument": (UserError, lambda m: torchproof.compile(m, bakend="eager")),
    "mode of a graph": (
        UserError,
        lambda m: torchproof.graph(m, strategy="full:reduce-overhead"),
    ),
    "outputs of a graph": (UserError, lambda m: torchproof.graph(m, outputs="views")),
    "status of a part": (UserError, lambda m: torchproof.status(m.norm)),
    "retry of a part": (UserError, lambda m: torchproof.retry(m.norm)),
    "state without weights": (RuntimeError, lambda m: m.load_state_dict({})),
}


# -- one call --------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """The rows of the input, and which gradients are asked for."""

    rows: int = 3
    gradients: bool = True
    of_input: bool = False


CALLS = st.builds(Call, st.sampled_from((3, 3, 2, 5, 1)), st.booleans(), st.booleans())


@dataclass(frozen=True)
class Outcome:
    output: Tensor | None
    error: str | None
    x: Tensor
    random_state: tuple[Any, ...]


def perform(run: Callable[[Tensor], Tensor], call: Call, dtype: torch.dtype) -> Outcome:
    x = torch.linspace(-1, 1, 4 * call.rows, dtype=dtype).view(-1, 4)
    x.requires_grad_(call.of_input)
    seed_all(call.rows)
    output = error = None
    try:
        with torch.set_grad_enabled(call.gradients):
            output = run(x)
            if output.requires_grad:
                output.square().sum().backward()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    drawn = (torch.get_rng_state(), random.getstate(), str(numpy.random.get_state()))
    return Outcome(output, error, x, drawn)


class Rounding:
    """Compares tensors: they may differ by `times` what is usual for their type."""

    usual: ClassVar = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 2e-2}

    def __init__(self, times: int) -> None:
        self._times = times

    def assert_close(self, what: str, given: Any, expected: Any) -> None:
        assert (given is None) == (expected is None), f"{what}: {given}, not {expected}"
        if given is None or expected is None:
            return
        assert given.requires_grad == expected.requires_grad, what
        limit = self._times * self.usual.get(expected.dtype, 0.0)
        torch.testing.assert_close(
            given.detach(),
            expected.detach(),
            rtol=limit,
            atol=limit,
            equal_nan=True,
            msg=lambda text: f"{what}: {text}",
        )


def assert_same(given: Outcome, expected: Outcome, rounding: Rounding) -> None:
    assert given.error == expected.error
    rounding.assert_close("the output", given.output, expected.output)
    rounding.assert_close("the input", given.x, expected.x)
    rounding.assert_close("the input's gradient", given.x.grad, expected.x.grad)
    (drawn, *others), (as_drawn, *as_others) = given.random_state, expected.random_state
    assert torch.equal(drawn, as_drawn), "other random numbers of torch were drawn"
    assert others == as_others, "other random numbers were drawn"


# -- a model and its twin --------------------------------------------------------------


class Pair:
    """A model that torchproof runs, and its twin, which goes through the same."""

    def __init__(self, twin: Any, model: Any, rounding: Rounding) -> None:
        self.twin, self.model = twin, model
        self.rounding = rounding
        self.graphed: Any = None
        self.trains = False  # what was recorded
        self.hooks: list[tuple[Any, Any]] = []
        self.last = Call()

    @property
    def dtype(self) -> torch.dtype:
        return self.twin.table.dtype

    def both(self, change: Callable[[Any], Any]) -> None:
        """Changes the model and the twin; both raise the same, or nothing."""
        errors = []
        for each in (self.twin, self.model):
            try:
                change(each)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        assert len(set(errors)) in (0, 1) and len(errors) != 1, errors

    def call(self, call: Call) -> None:
        self.last = call
        expected = perform(self.twin, call, self.dtype)
        given = perform(self.model, call, self.dtype)
        assert_same(given, expected, self.rounding)
        self.settle()

    def call_graphed(self, call: Call) -> None:
        """A recording has no gradients, or those of its own backward."""
        expected = perform(self._unrecorded, call, self.dtype)
        given = perform(self.graphed, call, self.dtype)
        assert_same(given, expected, self.rounding)

    def _unrecorded(self, x: Tensor) -> Tensor:
        if not self.trains:
            with torch.no_grad():
                return self.twin(x)
        output = self.twin(x)
        if not output.requires_grad:
            raise UserError(WITHOUT_GRADIENT)
        output.mean().backward()
        return output.detach()

    def settle(self) -> None:
        """Waits for what compiles behind a call."""
        end = time.monotonic() + PATIENCE_S
        while torchproof.status(self.model).pending:
            assert time.monotonic() < end, "it compiles for ever"
            time.sleep(0.005)

    def assert_same_state(self) -> None:
        assert_close = self.rounding.assert_close
        twins = dict(self.twin.named_parameters())
        models = dict(self.model.named_parameters())
        assert list(models) == list(twins)
        for name, parameter in twins.items():
            assert_close(name, models[name], parameter)
            assert_close(f"gradient of {name}", models[name].grad, parameter.grad)
        assert list(self.model.state_dict()) == list(self.twin.state_dict())
        buffers = dict(self.model.named_buffers())
        for name, buffer in self.twin.named_buffers():
            assert_close(name, buffers[name], buffer)
        assert _facts(self.model) == _facts(self.twin)


def _facts(model: Any) -> Any:
    parts = [(name, type(m), m.training) for name, m in model.named_modules()]
    return parts, vars(model.config), model.modes, model.layers


# -- the machine -----------------------------------------------------------------------


class TwinMachine(RuleBasedStateMachine):
    """Does what programs do, in any order."""

    rounding: ClassVar[int] = 1
    counts: ClassVar[Counter[str]] = Counter()  # of all examples

    pairs: Bundle[Pair] = Bundle("pairs")
    way = st.sampled_from([*WAYS])

    def __init__(self) -> None:
        super().__init__()
        torch._dynamo.reset()
        self._all: list[Pair] = []
        self._within = contextlib.ExitStack()
        self._within.enter_context(surroundings())
        self._within.callback(setattr, Block, "forward", FORWARDS[0])
        self._global_hook: Any = None

    def teardown(self) -> None:
        for pair in self._all:
            self._count(pair)
        if self._global_hook is not None:
            self._global_hook.remove()
        self._within.close()
        torchproof.step.reset()

    def _count(self, pair: Pair) -> None:
        status = torchproof.status(pair.model)
        self.counts["calls"] += status.calls
        self.counts["compiled"] += status.compiled_calls
        self.counts["compilations"] += len(status.compilations)
        for each in status.fallbacks:
            self.counts[f"fallback: {each.kind}"] += 1
        if pair.graphed is not None:
            self.counts["graph calls"] += pair.graphed.status().calls
            self.counts["replays"] += pair.graphed.status().replays

    def arguments(self, way: str) -> dict[str, Any]:
        return {"deadline": 60, **WAYS[way]}

    def _add(self, pair: Pair) -> Pair:
        self._all.append(pair)
        return pair

    def _has_room(self) -> bool:
        return len(self._all) < MOST_PAIRS

    def _after(self, pair: Pair, quietly: bool) -> None:
        """Calls as it was called before: code for this call exists."""
        if not quietly:
            pair.call(pair.last)
            if pair.graphed is not None:
                pair.call_graphed(pair.last)

    # -- models ------------------------------------------------------------------------

    @initialize(target=pairs, way=way)
    def begin(self, way: str) -> Pair:
        pair = self.compile(way)
        for _ in range(2):  # of regions, the first call shows where they are
            pair.call(Call())
        return pair

    def compile(self, way: str) -> Pair:
        seed_all(0)
        twin = Model()
        model = torchproof.compile(copy.deepcopy(twin), **self.arguments(way))
        return self._add(Pair(twin, model, Rounding(self.rounding)))

    @precondition(_has_room)
    @rule(target=pairs, way=way)
    def compile_another(self, way: str) -> Pair:
        return self.compile(way)

    @rule(pair=pairs, way=way, quietly=st.booleans())
    def compile_again(self, pair: Pair, way: str, quietly: bool) -> None:
        assert torchproof.compile(pair.model, **self.arguments(way)) is pair.model
        self._after(pair, quietly)

    @precondition(_has_room)
    @rule(target=pairs, pair=pairs, how=st.sampled_from([*COPIES]))
    def make_copy(self, pair: Pair, how: str) -> Pair:
        twin, model = COPIES[how](pair.twin), COPIES[how](pair.model)
        made = Pair(twin, model, pair.rounding)
        assert torchproof.status(made.model).calls == 0
        self._after(made, False)
        return self._add(made)

    # -- calls -------------------------------------------------------------------------

    @rule(pair=pairs, call=CALLS)
    def call(self, pair: Pair, call: Call) -> None:
        pair.call(call)

    @rule(pair=pairs, trains=st.booleans(), example=st.booleans(), pads=st.booleans())
    def graph(self, pair: Pair, trains: bool, example: bool, pads: bool) -> None:
        given = (torch.ones(3, 4, dtype=pair.dtype),) if example else None
        drawn = torch.get_rng_state()
        padding = PADDING if pads and not trains else {}
        pair.graphed = torchproof.graph(pair.model, given, train=trains, **padding)
        pair.trains = trains
        assert torch.equal(torch.get_rng_state(), drawn)

    @rule(pair=pairs, call=CALLS)
    def call_graphed(self, pair: Pair, call: Call) -> None:
        if pair.graphed is None:
            self.graph(pair, trains=False, example=False, pads=False)
        pair.call_graphed(call)

    @rule(pair=pairs, keeps=st.booleans(), refused=st.booleans())
    def step(self, pair: Pair, keeps: bool, refused: bool) -> None:
        """The backward follows after the step; no other step begins before it."""

        def run(x: Tensor) -> Tensor:
            with torchproof.step() as step:
                output = step.run(pair.model, x)
                output = step.keep(output) if keeps else output
            if refused:
                with pytest.raises(StepError), torchproof.step():
                    pass
            return output

        expected = perform(pair.twin, Call(), pair.dtype)
        assert_same(perform(run, Call(), pair.dtype), expected, pair.rounding)
        pair.settle()

    # -- changes -----------------------------------------------------------------------

    @rule(pair=pairs, name=st.sampled_from([*CHANGES]), quietly=st.booleans())
    def change(self, pair: Pair, name: str, quietly: bool) -> None:
        pair.both(CHANGES[name])
        self._after(pair, quietly)

    @rule(
        pair=pairs,
        kind=st.sampled_from([*HOOKS]),
        place=st.sampled_from(PLACES),
        quietly=st.booleans(),
    )
    def add_hook(self, pair: Pair, kind: str, place: str, quietly: bool) -> None:
        added = [
            getattr(model.get_submodule(place), kind)(HOOKS[kind])
            for model in (pair.twin, pair.model)
        ]
        pair.hooks.append((added[0], added[1]))
        self._after(pair, quietly)

    @rule(pair=pairs, quietly=st.booleans())
    def remove_hook(self, pair: Pair, quietly: bool) -> None:
        if pair.hooks:
            for hook in pair.hooks.pop():
                hook.remove()
            self._after(pair, quietly)

    @rule(pair=pairs)
    def hook_all_modules(self, pair: Pair) -> None:
        """Or no longer: the hook is the same for all pairs."""
        if self._global_hook is None:
            register = nn.modules.module.register_module_forward_hook
            self._global_hook = register(_shifted_block)
        else:
            self._global_hook.remove()
            self._global_hook = None
        self._after(pair, False)

    @rule(pair=pairs, forward=st.sampled_from(FORWARDS))
    def replace_forward_of_class(self, pair: Pair, forward: Any) -> None:
        Block.forward = forward  # type: ignore[method-assign]
        self._after(pair, False)

    @rule(pair=pairs, quietly=st.booleans())
    def retry(self, pair: Pair, quietly: bool) -> None:
        torchproof.retry(pair.model)
        self._after(pair, quietly)

    @rule(pair=pairs, what=st.sampled_from([*REFUSED]))
    def refuse(self, pair: Pair, what: str) -> None:
        error, attempt = REFUSED[what]
        forward, calls = pair.model.forward, torchproof.status(pair.model).calls
        with pytest.raises(error):
            attempt(pair.model)
        assert pair.model.forward is forward
        assert torchproof.status(pair.model).calls == calls
        self._after(pair, False)

    @invariant()
    def states_are_the_same(self) -> None:
        for pair in self._all:
            pair.assert_same_state()


def _shifted_block(module: nn.Module, args: Any, output: Any) -> Any:
    return output + 0.5 if isinstance(module, Block) else None
