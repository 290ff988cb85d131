"""The compiled object goes where the original is called."""

import re
from pathlib import Path
from typing import Any

import torch
from rule_programs import FOLDER, Program
from sites import program, rewritten

from torchproof.checking import rules
from torchproof.fixing.rewrites import Rewrite
from torchproof.fixing.rewrites.compiling import (
    assign,
    call_result,
    in_place,
    learning_rate,
    method,
)
from torchproof.records import GraphEvent

DISCARDED, NAMED = "    torch.compile(", "    compiled = torch.compile("
# Programs of tests/rules, with what the edit of their line writes.
CASES = {
    "NC803 bad": (assign, '    model = torch.compile(model, backend="eager")\n'),
    "NC803 bad_2": (call_result, "        return self.compiled(x).sum()\n"),
    "NC802 bad_2": (
        in_place,
        '    model = Decoder()\n    model.compile(backend="eager")\n',
    ),
    "NC803 bad named": (
        in_place,
        '    model.compile(backend="eager")\n    compiled = model\n',
    ),
    "NC802 bad": (
        method,
        "    model = AutoEncoder()\n"
        '    model.encode = torch.compile(model.encode, backend="eager")\n',
    ),
}


def edited(name: str, rewrite: Rewrite) -> str:
    """The program after the edit of its marked line."""
    code, factory, *named = name.split()
    lines = Program(FOLDER / f"{code}.py", factory).text
    head = "import torch\nfrom torch import nn\n\n"
    text = head + re.sub(rf"# (?:<-|run:) {code}", "# <-", lines)
    if named:
        text = text.replace(DISCARDED, NAMED)
    return rewritten(rewrite, text).text


def test_the_compiled_object_runs(observe_all: Any, tmp_path: Path) -> None:
    """The finding is gone, and a graph runs."""
    targets = []
    for name, (rewrite, after) in CASES.items():
        text = edited(name, rewrite)
        assert after in text, name
        file = tmp_path / f"{name.replace(' ', '_')}.py"
        file.write_text(text)
        targets.append((f"{file}:{name.split()[1]}", {"as_written": True}))
    for observation in observe_all(targets):
        assert not [f for f in rules.check(observation) if f.kind == "no_op"]
        assert observation.of(GraphEvent)


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
