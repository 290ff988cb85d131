"""The figures that trainers log are those of `torchproof.status`, and documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchproof
from torchproof.integrations import compile_metrics as module
from torchproof.runtime.status_report import Fallback, Status, Totals

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"


def test_figures_of_a_compiled_model() -> None:
    model = torchproof.compile(nn.Linear(4, 4), backend="eager")
    before = module.compile_metrics([model])
    assert "torchproof/compiled_share" not in before
    assert "torchproof/graph_breaks" not in before  # nothing was compiled
    model(torch.ones(2, 4))
    found = module.compile_metrics([model])
    assert set(found) == set(
        re.findall(r"^\| `(torchproof/\w+)` ", PAGE.read_text(), re.M)
    )
    assert found.pop("torchproof/compile_seconds") > 0
    assert found == {
        "torchproof/compiled_share": 1.0,
        "torchproof/fallbacks": 0,
        "torchproof/graph_breaks": 0,
        "torchproof/recompiles": 0,
    }


def test_figures_add_up_and_the_unknown_is_left_out(monkeypatch: Any) -> None:
    def status(breaks: int | None) -> Status:
        # The status keeps only the latest records.
        failed = Fallback("deadline", "Net.forward", "5 s")
        totals = Totals(compilations=1, fallbacks={"deadline": 2, "storm": 1})
        return Status(
            model="Net",
            strategy="full",
            why="",
            deadline_s=5,
            calls=4,
            compiled_calls=1,
            graph_breaks=breaks,
            fallbacks=(failed,),
            totals=totals,
        )

    monkeypatch.setattr(module.runtime, "status", status)
    monkeypatch.setattr(module.runtime, "compiled_forward_of", id)
    known = module.compile_metrics([2, 3])
    assert known["torchproof/graph_breaks"] == 5
    assert known["torchproof/fallbacks"] == 6
    assert known["torchproof/compiled_share"] == 0.25
    assert "torchproof/graph_breaks" not in module.compile_metrics([2, None])


def test_the_page_shows_the_lines_of_the_modules() -> None:
    folder, page = Path(module.__file__).parent, PAGE.read_text()
    for name in ("transformers", "lightning"):
        text = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text())) or ""
        lines = text.split("\n\n", 1)[1].splitlines()
        assert len(lines) >= 2 and all(line in page for line in lines)
        assert f"from torchproof.integrations.{name} import CompileCallback" in page
