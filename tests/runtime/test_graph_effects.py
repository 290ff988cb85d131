"""`raise_if`, `in_graph` and `on_host` do the same in eager and in compiled code."""

import pytest
import torch
import torch._dynamo.testing

from torchproof import in_graph, on_host, raise_if


class Odd(ValueError):
    """An exception of a program."""


def same(step, good, bad, backend="aot_eager"):
    """The message that eager and compiled code raise for `bad`."""
    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    assert torch.equal(compiled(*good), step(*good))
    with pytest.raises(Exception) as eager:
        step(*bad)
    with pytest.raises(Exception) as graph:
        compiled(*bad)
    assert type(eager.value) is type(graph.value)
    assert str(eager.value) == str(graph.value)
    assert eager.value.args == graph.value.args
    return type(eager.value), str(eager.value)


GOOD, BAD = (torch.tensor([1, 2]),), (torch.tensor([1, 12]),)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_plain_message(backend):
    def step(ids):
        raise_if((ids > 9).any(), ValueError, "too large: {}")
        return ids + 1

    assert same(step, GOOD, BAD, backend) == (ValueError, "too large: {}")


def test_inductor_keeps_the_operator():
    def step(ids):
        raise_if(ids.max() > 9, Odd, "{} is too large", ids.max())
        return ids + 1

    assert same(step, GOOD, BAD, "inductor") == (Odd, "12 is too large")


def test_no_message():
    def step(ids):
        raise_if(ids.max() > 9, AssertionError)
        return ids + 1

    assert same(step, GOOD, BAD) == (AssertionError, "")


def test_values_of_all_kinds():
    def step(ids):
        raise_if(
            ids.max() > 9,
            IndexError,
            "{} in {} of {}, limit {:.1f}, {}, {:>4}",
            ids,
            ids.shape,
            ids.dtype,
            9.25,
            "name",
            ids.shape[0],
        )
        return ids + 1

    kind, text = same(step, GOOD, BAD)
    assert kind is IndexError
    assert text == (
        "tensor([ 1, 12]) in torch.Size([2]) of torch.int64, limit 9.2, name,    2"
    )


def test_a_dynamic_size_stays_dynamic():
    def step(ids):
        raise_if(ids.max() > 9, ValueError, "{} of {}", ids.max(), ids.shape[0])
        return ids + 1

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    for length in (3, 4, 5, 6):
        compiled(torch.ones(length, dtype=torch.long))
    assert counter.frame_count == 1
    with pytest.raises(ValueError, match="10 of 7"):
        compiled(torch.full((7,), 10))


def test_in_training():
    layer = torch.nn.Linear(2, 2)

    def step(x):
        hidden = layer(x)
        raise_if(x.isnan().any(), ValueError, "NaN")
        return hidden.sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(1, 2)).backward()
    assert layer.weight.grad is not None
    with pytest.raises(ValueError, match="NaN"):
        compiled(torch.full((1, 2), torch.nan))


def test_a_python_condition():
    def step(ids):
        raise_if(ids.shape[0] > 2, ValueError, "{} elements", ids.shape[0])
        return ids + 1

    with pytest.raises(ValueError, match="3 elements"):
        step(torch.ones(3))
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


written: list[object] = []


@in_graph
def write(*values):
    written.append(values)


@in_graph
def check(ids, limit):
    if ids.max().item() > limit:
        raise Odd(f"{ids[ids > limit].tolist()} of {limit}")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_function_in_the_graph(backend):
    def step(x):
        write("same")
        write("same")
        write("shape", x.shape, (1.5, None), [True, x.dtype, x.device])
        write(x.mean())
        return x + 1

    def effects(function):
        written.clear()
        function(torch.ones(2))
        function(torch.zeros(2))
        return list(written)

    torch._dynamo.reset()
    expected = effects(step)
    assert effects(torch.compile(step, backend=backend, fullgraph=True)) == expected


def test_equal_calls_in_training_are_not_merged():
    weight = torch.ones(2, requires_grad=True)

    def step(x):
        write("same", x)
        y = x * weight
        write("same", x)
        return y.sum()

    written.clear()
    torch._dynamo.reset()
    torch.compile(step, backend="aot_eager", fullgraph=True)(torch.ones(2)).backward()
    assert len(written) == 2


def test_a_function_in_the_graph_that_raises():
    def step(ids):
        check(ids, 9)
        return ids + 1

    assert same(step, GOOD, BAD) == (Odd, "[12] of 9")


def test_an_argument_that_does_not_fit():
    def step(x):
        write({1, 2})
        return x + 1

    torch._dynamo.reset()
    with pytest.raises(Exception, match="takes tensors, numbers and texts"):
        torch.compile(step, backend="eager", fullgraph=True)(torch.ones(2))


def inner(x):
    return x * 2 + 1


@on_host
def around(x):
    y = inner(x)
    return y * y.sum().item()


class Holder(torch.nn.Module):
    def inner(self, x):
        return x * 2 + 1

    @on_host
    def forward(self, x):
        y = self.inner(x)
        return y * y.sum().item()


@pytest.mark.parametrize("function", [around, Holder()], ids=["function", "module"])
def test_a_function_on_the_host_is_not_in_the_graph(function):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # which a reset keeps
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(function, backend=counter)
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(compiled(x), function(x))
    assert counter.frame_count == 1  # of `inner`
    assert not torch._dynamo.utils.counters["graph_break"]
