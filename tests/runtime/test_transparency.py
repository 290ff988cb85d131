"""A compiled model does what the plain one does, whatever is done with it.

Each operation runs on a plain model and on a compiled twin that has been called before;
what both return has to be the same. tests/state_fuzz has changes of classes, weights,
modes, types and hooks, and copies; test_threads has autocast.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from twins import Net, Stack, compiled, sample

import torchproof

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo hides it where warnings are shown, not where they are errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def outcome(act: Callable[[], Any]) -> Any:
    """The result, or the type and the text of the error."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


def seeded(model: Any, *args: Any, **kwargs: Any) -> Any:
    torch.default_generator.manual_seed(0)
    return model(*args, **kwargs)


def gradients(model: Any, *args: Any) -> list[Tensor | None]:
    """Of a backward pass; they are gone afterwards."""
    answer = seeded(model, *args)
    answer = answer[0] if isinstance(answer, tuple) else answer
    answer.square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return found


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Tensor) or one is None:
        torch.testing.assert_close(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        same(list(one.values()), list(other.values()))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs)
    else:
        assert one == other


# -- state, modes and moves ------------------------------------------------------------


def describe(model: Any) -> Any:
    return (
        dict(model.state_dict()),
        [name for name, _ in model.named_parameters()],
        [name for name, _ in model.named_buffers()],
        [name for name, _ in model.named_modules()],
        repr(model),
        str(inspect.signature(model.forward)),
        (type(model), model.forward.__name__),
    )


def leave_meta(model: Any) -> Any:
    state = copy.deepcopy(model.state_dict())
    model.to("meta")
    found = [outcome(lambda: model.to("cpu"))[0], outcome(lambda: model(sample()))[0]]
    found.append(model(sample().to("meta")).is_meta)
    model.to_empty(device="cpu").load_state_dict(state)
    return found, model(sample())


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def parametrized(model: Any) -> Any:
    parametrize.register_parametrization(model.inner, "weight", Doubled())
    found = gradients(model, sample())
    parametrize.remove_parametrizations(model.inner, "weight")
    return found, model(sample())


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.mix(x.view(-1, 2, 2, 1)).relu()
        return answer


def change_memory_format(model: Any) -> Any:
    model.to(memory_format=torch.channels_last)
    x = sample().view(-1, 2, 2, 1).contiguous(memory_format=torch.channels_last)
    answer = model(x)
    return answer, answer.stride(), model.mix.weight.stride(), gradients(model, x)


# -- arguments, answers and errors -----------------------------------------------------


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


@dataclass
class Answer:
    value: Tensor
    parts: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and torch.equal(self.value, other.value)


class Flexible(nn.Module):
    """Takes arguments in every form and answers in a container of any kind."""

    def forward(
        self, x: Tensor, *more: Tensor, kind: str = "plain", **named: Any
    ) -> Any:
        for one in (*more, *named.get("extra", {}).get("list", ())):
            x = x + one
        y = x * named.get("times", 2)
        if kind == "raises":
            raise ValueError(f"{x.dim()} dimensions")
        containers: dict[str, Any] = {
            "plain": y,
            "dict": {"a": y, "b": [y, (x, None)], "c": 3},
            "named": Pair(y, None),
            "ordered": OrderedDict(a=y, b=x),
            "none": None,
            "dataclass": Answer(y, {}),
        }
        return containers[kind]


def call_in_every_form(model: Any) -> Any:
    x = sample()
    return [
        model(x=x),
        model(x, x, x),
        model(x, times=3, extra={"list": [x, x * 2]}),
        *(
            model(x, kind=kind)
            for kind in ("dict", "named", "ordered", "none", "dataclass")
        ),
    ]


class Strict(nn.Module):
    """Raises for some values, where its graph breaks, and catches an error inside."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if bool((y < 0).any()):
            raise ValueError("negative")
        try:
            return y * {}["missing"]
        except KeyError:
            return y + sum(y**power for power in range(1, 3))


class Writes(nn.Module):
    def forward(self, x: Tensor, into: list[Tensor] | None = None) -> Tensor:
        x.add_(1)
        if into is not None:
            into.append(x * 2)
        return x


def write_to_inputs(model: Any) -> Any:
    x, into = torch.zeros(3), list[Tensor]()
    return [model(x, into) is x, model(x, into) is x], x, into


# -- contexts and differentiation ------------------------------------------------------


def change_grad_mode(model: Any) -> Any:
    found = []
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            answer = model(sample())
        found.append((answer.detach().clone(), answer.requires_grad))
        found.append((answer.is_inference(),))
    return found, gradients(model, sample())


def transform(model: Any) -> Any:
    batches = torch.stack([sample(seed=seed) for seed in range(3)])
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    return [
        torch.vmap(model)(batches),
        torch.func.grad(loss)(weights, sample()),
        torch.func.jvp(model, (sample(),), (sample(seed=1),)),
        model(sample()),
    ]


def forward_mode(model: Any) -> Any:
    with forward_ad.dual_level():
        answer = model(forward_ad.make_dual(sample(), sample().cos()))
        found = tuple(forward_ad.unpack_dual(answer))
    return found, model(sample())


def hook_saved_tensors(model: Any) -> Any:
    packed: list[int] = []

    def pack(x: Tensor) -> Tensor:
        packed.append(1)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        found = gradients(model, sample())
    return found, bool(packed)


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = checkpoint(self.net, x, use_reentrant=False)
        return answer * 2


def recompute_around(model: Any) -> Any:
    outer = Recomputed()
    outer.net = model
    return [gradients(outer, sample()) for _ in range(2)]


def differentiate(model: Any) -> Any:
    x = sample().requires_grad_()
    answer = model(x)
    answer[0].sum().backward(retain_graph=True)
    answer.sum().backward()
    return x.grad, [parameter.grad for parameter in model.parameters()]


# -- other tracers --------------------------------------------------------------------


def export_strictly(model: Any) -> Any:
    sizes = ({0: torch.export.Dim.AUTO},)
    made = torch.export.export(model, (sample(),), strict=True, dynamic_shapes=sizes)
    return made.module()(sample())


# -- the table -------------------------------------------------------------------------

Act = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """`fallbacks` are the kinds of those that are expected."""

    act: Act
    make: Callable[[], Any] = Net
    fallbacks: tuple[str, ...] = ()
    backend: str = "eager"


CASES: dict[str, Case] = {
    "names, texts and signature": Case(describe),
    "meta device": Case(leave_meta),
    "parametrization": Case(parametrized),
    "memory format": Case(change_memory_format, Convolved, backend="aot_eager"),
    "forms of arguments and answers": Case(call_in_every_form, Flexible),
    "error of the model": Case(
        lambda m: [outcome(lambda: m(sample(), kind="raises")), m(sample())], Flexible
    ),
    "error after a graph break": Case(
        lambda m: [outcome(lambda: m(-torch.ones(2))), m(torch.ones(2))], Strict
    ),
    "inputs that are written to": Case(write_to_inputs, Writes, backend="aot_eager"),
    "gradient modes": Case(change_grad_mode, backend="aot_eager"),
    "function transforms": Case(transform, fallbacks=("unsupported",)),
    "forward-mode differentiation": Case(forward_mode),
    "saved tensors hooks": Case(hook_saved_tensors, backend="aot_eager"),
    "checkpoint inside": Case(lambda m: gradients(m, sample()), Recomputed),
    "checkpoint around": Case(recompute_around, backend="aot_eager"),
    "backward twice": Case(differentiate, backend="aot_eager"),
    "torch.export": Case(export_strictly),
    "torch.jit.trace": Case(lambda m: torch.jit.trace(m, (sample(),))(sample())),
    "symbolic_trace": Case(lambda m: torch.fx.symbolic_trace(m)(sample())),
    "make_fx": Case(lambda m: make_fx(m)(sample())(sample())),
    "torch.compile": Case(
        lambda m: torch.compile(m, backend="eager", fullgraph=True)(sample())
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_model_does_what_the_plain_one_does(name: str) -> None:
    case = CASES[name]
    results = []
    for compiles in (False, True):
        torch.default_generator.manual_seed(0)
        model = case.make()
        model.eval()
        if compiles:
            assert compiled(model, backend=case.backend) is model
        seeded(model, torch.ones(2) if case.make is Strict else sample())
        results.append(case.act(model))
    same(*results)
    status = torchproof.status(model)
    assert tuple({item.kind for item in status.fallbacks}) == case.fallbacks, status
    assert status.compiled_calls, status


def test_options_go_with_a_copy() -> None:
    events: list[str] = []
    model = compiled(Net(), deadline=77, on_event=lambda kind, _: events.append(kind))
    for twin in (copy.copy(model), copy.deepcopy(compiled(Net(), deadline=77))):
        twin(sample())
        assert torchproof.status(twin).deadline_s == 77
    assert events == ["compilation"] and torchproof.status(model).calls == 0


def test_a_model_compiled_twice_keeps_nothing_of_the_first_time() -> None:
    model = compiled(Stack(), strategy="regional", deadline=5.0)
    model(sample())
    assert any("forward" in vars(block) for block in model.blocks)
    compiled(model, deadline=50.0)
    assert not any("forward" in vars(block) for block in model.blocks)
    model(sample())
    status = torchproof.status(model)
    assert (status.deadline_s, status.calls, len(status.compilations)) == (50.0, 1, 1)


def test_second_derivatives_are_refused_as_torch_refuses_them() -> None:
    """AOTAutograd has none, whoever calls it; Dynamo alone has eager's."""
    x = torch.ones(3, requires_grad=True)
    for backend in ("eager", "aot_eager"):
        function = compiled(lambda x: (x**3).sum(), backend=backend)
        (slope,) = torch.autograd.grad(function(x), x, create_graph=True)
        assert slope.tolist() == [3.0] * 3
        if backend == "eager":
            assert torch.autograd.grad(slope.sum(), x)[0].tolist() == [6.0] * 3
    with pytest.raises(RuntimeError, match="double backward"):
        slope.sum().backward()


def test_recurrent_and_scripted_models_run_eager_with_a_reason() -> None:
    plain = nn.LSTM(4, 5, batch_first=True)
    model = compiled(copy.deepcopy(plain))
    x = sample(6).view(2, 3, 4)
    same(model(x), plain(x))
    status = torchproof.status(model)
    assert status.compiled_share == 0.0 and (status.fallbacks or status.notes)
    scripted = torch.jit.script(nn.Linear(4, 4))
    expected = scripted(sample())
    torch.testing.assert_close(compiled(scripted)(sample()), expected)
    assert torchproof.status(scripted).strategy == "eager"


def replica_of(model: nn.Module) -> Any:
    """What `nn.parallel.replicate` does for each GPU, without a GPU."""
    every: list[Any] = list(model.modules())
    made = {module: module._replicate_for_data_parallel() for module in every}
    for module, replica in made.items():
        for name, child in module.named_children():
            setattr(replica, name, made[child])
        for name, parameter in module.named_parameters(recurse=False):
            setattr(replica, name, parameter * 2)
    return made[model]


def test_replicas_of_data_parallel_run_eager_with_their_own_parameters() -> None:
    plain = Stack()
    model = compiled(copy.deepcopy(plain))
    model(sample())
    for _ in range(2):
        torch.testing.assert_close(
            replica_of(model)(sample()), replica_of(plain)(sample())
        )
    [fallback] = torchproof.status(model).fallbacks
    assert fallback.kind == "unsupported"
    torch.testing.assert_close(model(sample()), plain(sample()))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=49, pad_token_id=49,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@pytest.mark.slow
def test_a_language_model_answers_trains_and_generates_as_eager_does() -> None:
    pytest.importorskip("transformers")
    plain = gpt2()
    model = compiled(copy.deepcopy(plain), backend="eager")
    tokens = torch.randint(0, 49, (2, 7))
    expected = plain(input_ids=tokens, labels=tokens)
    answer = model(input_ids=tokens, labels=tokens)
    assert type(answer) is type(expected) and list(answer) == list(expected)
    torch.testing.assert_close(answer.logits, expected.logits)
    for loss in (expected.loss, answer.loss):
        loss.backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
    options: Any = {"max_new_tokens": 2, "do_sample": False, "use_cache": True}
    assert torch.equal(
        model.generate(tokens, **options), plain.generate(tokens, **options)
    )
    status = torchproof.status(model)
    assert status.compilations and not status.fallbacks, status
