"""What each call changes leaves the graph, in the same order, with the same values."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from sites import function_of, site

from torchproof.fixing.rewrites import Draft, Refused
from torchproof.fixing.rewrites.state import outside

MODEL = """
    import math
    import torch
    from torch import nn

    events = []
    calls = 0

    def called():
        return calls

    def noted(count):
        events.append(count)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.seen, self.kept = 0, []

        def rate(self):
            return max(0.5, math.exp(-0.1 * self.seen))

        def forward(self, x):
            {body}

    torch.manual_seed(0)
    net = Net()

    def step(x):
        return net(x), repr((events, net.kept, net.seen, calls))
"""
BODIES = {
    "every second call": """
            y = self.lin(x)
            self.seen += 1  # <-
            if self.seen % 2 == 0:
                events.append(f"{self.seen}: {y.mean().item():.4f}")
            return y.relu()""",
    "between two parts": """
            y = nn.functional.dropout(self.lin(x), 0.1)
            self.kept.append(int((y > 0).sum()))  # <-
            z = y * 2
            return z @ x, z""",
    "a schedule": """
            self.seen += 1  # <-
            return torch.softmax(self.lin(x) / self.rate(), -1)""",
    "a schedule that advances later": """
            y = self.lin(x)
            scale = self.rate()  # <-
            double = 2 * scale
            self.seen += 1
            return y * double + math.exp(-scale)""",
    "two numbers": """
            y = self.lin(x) * math.exp(-self.seen)
            z = y + 0.5 * self.rate()
            self.seen += 1  # <-
            return z.relu()""",
    "a history": """
            self.kept.append(float(x.mean()))  # <-
            mean = sum(self.kept) / len(self.kept)
            return self.lin(x) * (x - mean)""",
    "a global": """
            global calls
            calls += 1  # <-
            y = self.lin(x).tanh()
            if calls == 2:
                events.append(("second", y.sum().item()))
            return y, calls""",
    "a function that reads it": """
            global calls
            y = self.lin(x) * called()
            calls += 1  # <-
            return y @ x""",
    "a check of the arguments before it": """
            if x.dim() != 2:
                raise ValueError("rows")
            self.seen += 1  # <-
            return self.lin(x) / self.seen""",
    "another name of the list": """
            kept = self.kept  # <-
            y = self.lin(x)
            kept.append(y.shape[0])
            self.kept.append(len(self.kept))
            return y @ x""",
    "what is read after a change in place": """
            for row in x.detach():
                row.mul_(2)
            self.kept.append(x.sum().item())  # <-
            return self.lin(x)""",
    "statistics of a layer": """
            y = self.norm(self.lin(x))
            self.kept.append(self.norm.running_mean.sum().item())  # <-
            return y.relu()""",
}
KEPT = {
    "what the graph needs after its first part": """
            y = self.lin(x)
            self.kept.append(y.sum().item())  # <-
            scale = sum(self.kept)
            z = y * scale
            return z @ self.lin(z).T""",
    "a state of tensors": """
            self.seen = self.seen * 0.9 + self.lin(x) @ x.T  # <-
            return self.seen""",
    "a module": """
            self.seen += 1  # <-
            return [self.lin, self.lin][self.seen % 2](x)""",
    "a count of a loop": """
            self.seen += 1  # <-
            y = self.lin(x)
            for _ in range(max(1, self.seen)):
                y = self.lin(y)
            return y""",
    "a second return": """
            self.seen += 1  # <-
            if self.seen == 1:
                return x
            return self.lin(x)""",
    "random numbers": """
            y = nn.functional.dropout(self.lin(x))
            self.kept.append(torch.rand(1).item())  # <-
            return y""",
    "a method of a base class": """
            y = self.lin(x) * self.other_rate()
            self.seen += 1  # <-
            return y.relu()""",
    "a local list": """
            found = []
            found.append(x.mean())  # <-
            return self.lin(x), found""",
    "a graph that changes what is read": """
            y = self.lin(x)
            self.kept.append(y.mean().item())  # <-
            y.relu_()
            return self.lin(y)""",
    "a function that changes what is read": """
            nn.functional.relu(x.detach(), inplace=True)
            y = self.lin(x)
            self.kept.append(y.sum().item())  # <-
            rescale(y)
            return y""",
    "printed text": """
            print("begin")
            self.seen += 1  # <-
            print(self.seen)
            return self.lin(x)""",
    "what an unknown object does": """
            y = self.lin(x) @ x
            self.seen += 1  # <-
            self.train(self.seen < 3)
            return y""",
    "a number for one of two cases": """
            y = self.lin(x) if self.training else self.lin(x) * (1 / self.seen)
            self.seen += 1  # <-
            return y""",
    "what a method of an object reads": """
            y = self.lin(x) * self.meter.value()
            self.meter.count += 1  # <-
            return y @ x""",
    "what a called function changes as well": """
            y = self.lin(x) * len(events)
            self.seen += 1  # <-
            noted(self.seen)
            return y @ x""",
    "an exception before it": """
            y = self.lin(x)
            if y.shape[0] > 4:
                raise ValueError("rows")
            self.seen += 1  # <-
            return y @ x""",
}
# What reads the state, without a name in the function.
READERS = {
    "a hook": "self.lin.register_forward_hook(lambda m, a, o: o * self.seen)",
    "a hook that is a method": "self.lin.register_forward_hook(self.rate)",
    "a layer with the model": "self.layer = Layer(self)",
    "a class that reads it": "self.layer = Layer([self])",
}


def program(body: str) -> str:
    return MODEL.replace("{body}", body.strip())


def drafted(text: str) -> Draft:
    return outside(replace(site(text, "RC213"), is_entry=True))


def values(step: Any) -> tuple[list[Any], list[str]]:
    """What the calls return, and what they leave behind."""
    torch.manual_seed(1)
    called = [step(torch.rand(4, 4)) for _ in range(5)]
    return [each for each, _ in called], [state for _, state in called]


@pytest.mark.parametrize("name", BODIES)
def test_the_values_are_the_same_and_no_call_recompiles_again(name: str) -> None:
    text = program(BODIES[name])
    draft = drafted(text)
    assert draft.tier == "safe"
    expected = values(function_of(text))
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    step = function_of(draft.text)
    net = step.__globals__["net"]
    net.forward = torch.compile(net.forward, backend=counter)
    outputs, state = values(step)
    torch.testing.assert_close(outputs, expected[0])
    assert state == expected[1]
    assert counter.frame_count <= 2  # the second takes a number as an input


@pytest.mark.parametrize("name", READERS)
def test_what_something_else_reads_stays(name: str) -> None:
    body = "y = self.lin(x)\n            self.seen += 1  # <-\n            return y @ x"
    text = program(body)
    assert drafted(text)
    text = text.replace(
        "self.seen, self.kept = 0, []", f"self.seen = 0; {READERS[name]}"
    )
    if name == "a class that reads it":
        text += "\n    class Layer:\n        def f(self):\n            self.o[0].seen\n"
    with pytest.raises(Refused):
        drafted(text)


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    with pytest.raises(Refused):
        drafted(program(KEPT[name]))


def test_a_function_that_is_called_by_compiled_code_stays() -> None:
    with pytest.raises(Refused):
        outside(site(program(BODIES["a schedule"]), "RC213"))
