"""The compiled object goes where the original is called."""

from pathlib import Path
from typing import Any

import torch
from sites import program, rewritten

from torchproof.checking import rules
from torchproof.fixing.rewrites.compiling import (
    assign,
    call_result,
    in_place,
    learning_rate,
    method,
)

CLASS = """\
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.Linear(4, 2)

    def encode(self, x):
        return self.down(x).tanh()

    def generate(self, x):
        return self(x) + self(x)

    def forward(self, x):
        return self.down(x)


"""
CASES = {
    "discarded": (
        "NC803",
        assign,
        """\
def make():
    model = Model()
    # Faster.
    torch.compile(model, backend="eager")

    def step(x):
        return model(x)  # <-

    return step, [(torch.ones(2, 4),)] * 2
""",
        """\
    # Faster.
    model = torch.compile(model, backend="eager")
""",
    ),
    "another name": (
        "NC803",
        call_result,
        """\
class Trainer:
    def __init__(self):
        self.model = Model()
        self.compiled = torch.compile(self.model, backend="eager")

    def step(self, x):
        return self.model(x).sum()  # <-


def make():
    trainer = Trainer()
    return lambda x: trainer.step(x), [(torch.ones(2, 4),)] * 2
""",
        "        return self.compiled(x).sum()\n",
    ),
    "generate": (
        "NC802",
        in_place,
        """\
def make():
    model = torch.compile(Model(), backend="eager")

    def step(x):
        return model.generate(x)  # <-

    return step, [(torch.ones(2, 4),)] * 2
""",
        """\
    model = Model()
    model.compile(backend="eager")
""",
    ),
    "the original in place": (
        "NC803",
        in_place,
        """\
def make():
    model = Model()
    compiled = torch.compile(model, backend="eager")

    def step(x):
        return model(x)  # <-

    return step, [(torch.ones(2, 4),)] * 2
""",
        """\
    model.compile(backend="eager")
    compiled = model
""",
    ),
    "another method": (
        "NC802",
        method,
        """\
def make():
    model = torch.compile(Model(), backend="eager")

    def step(x):
        return model.encode(x)  # <-

    return step, [(torch.ones(2, 4),)] * 2
""",
        """\
    model = Model()
    model.encode = torch.compile(model.encode, backend="eager")
""",
    ),
}


def test_the_compiled_object_runs(observe_all: Any, tmp_path: Path) -> None:
    """The finding is gone, and a graph runs."""
    targets = []
    for name, (_, rewrite, text, after) in CASES.items():
        draft = rewritten(rewrite, program(CLASS + text))
        assert after in draft.text, name
        original = (CLASS + text).replace("# <-", "#")
        for number, version in enumerate((original, draft.text)):
            file = tmp_path / f"{name.replace(' ', '_')}_{number}.py"
            file.write_text(version)
            targets.append((f"{file}:make", {"as_written": True}))
    observed = observe_all(targets)
    for (code, *_), before, after in zip(
        CASES.values(), observed[::2], observed[1::2], strict=True
    ):
        assert code in {f.code for f in rules.check(before)}
        assert not [f for f in rules.check(after) if f.kind == "no_op"]
        assert [event for event in after.events if event.kind == "graph"]


def test_learning_rate() -> None:
    before = program(
        """
        import torch


        def make(model):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

            def step():
                optimizer.step()  # <-

            return step, scheduler
        """
    )
    text = rewritten(learning_rate, before, "RC218").text
    assert "lr=torch.tensor(0.01))" in text
    results = []
    for source in (before, text):
        scope: dict[str, Any] = {}
        exec(source, scope)
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        step, scheduler = scope["make"](model)
        for _ in range(4):
            step()
            scheduler.step()
        results.append(model.weight.detach())
    torch.testing.assert_close(*results)
