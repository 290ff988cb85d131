"""Models of the main program are tried in a child too, and the program runs once."""

from __future__ import annotations

import linecache
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof.process import main_definitions

PROGRAM = """
from __future__ import annotations

import functools
import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
import torchproof

if TYPE_CHECKING:
    from nowhere import Batch

WIDTH = 4
runs = pathlib.Path("runs")
runs.write_text(runs.read_text() + "once " if runs.exists() else "once ")
open_file = open("runs")  # cannot be pickled, and no model uses it


@dataclass
class Config:
    width: int = WIDTH
    deed: str = DEED


config = Config()


def around(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args)
    return call


class Base(nn.Module):
    pass


class Net(Base):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(config.width, WIDTH)

    @around
    def forward(self, x: Batch):
        if config.deed == "crash" and torch.compiler.is_compiling():
            torch._dynamo.graph_break()
            crash()
        if config.deed == "open file":
            x = x + len(open_file.name)
        return self.linear(x).sum()


@torch.compiler.disable
def crash():
    import ctypes
    ctypes.string_at(0)


if __name__ == "__main__":
    model = torchproof.compile(Net(), backend="aot_eager", example=(torch.ones(2, 4),))
    print(torchproof.status(model))
    print("runs:", runs.read_text())
"""


def run(folder: Path, deed: str) -> str:
    program = folder / "program.py"
    program.write_text(PROGRAM.replace("DEED", repr(deed)))
    done = subprocess.run(
        [sys.executable, program.name], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "runs: once \n" in done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_model_of_a_script_is_tried(tmp_path: Path) -> None:
    told = run(tmp_path, "nothing")
    assert "not tried" not in told and "eager" not in told


@pytest.mark.slow
def test_a_model_that_needs_more_of_the_script_is_not_blamed(tmp_path: Path) -> None:
    told = run(tmp_path, "open file")
    assert "not tried in a child process" in told and "open_file" in told
    assert "\n  eager" not in told


@pytest.mark.slow
def test_a_crash_of_compiled_code_is_found(tmp_path: Path) -> None:
    told = run(tmp_path, "crash")
    assert "eager (probe: killed by SIGSEGV" in told and "string_at" in told


# -- notebooks -------------------------------------------------------------------------

CELLS = (
    "import torch\nfrom torch import nn\nfrom math import sin as sine\nFACTOR = 3\n",
    "def scaled(x):\n    return x * FACTOR + sine(0)\n\nprint('cell 2 ran')\n",
    "class Net(nn.Module):\n    def forward(self, x):\n        return x\n",
    "class Net(nn.Module):\n    def forward(self, x):\n        return scaled(x)\n",
    "def unused():\n    return nothing\n",
)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a main program without a file, whose cells have run in order."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for number, cell in enumerate(CELLS):
        name = f"<cell {number}>"
        entry = (len(cell), None, cell.splitlines(keepends=True), name)
        monkeypatch.setitem(linecache.cache, name, entry)
        exec(compile(cell, name, "exec", dont_inherit=True), vars(main))
    return vars(main)


def test_cells_of_a_notebook_are_sources(
    notebook: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook["FACTOR"] = 5  # as it is now, not as the cell says
    notebook["huge"] = torch.ones(3)
    capsys.readouterr()
    torch.save(notebook["Net"](), tmp_path / "call.pt")
    assert main_definitions.save(tmp_path / "call.pt", tmp_path / "main")
    main_definitions.install(main_definitions.load(tmp_path / "main"))
    installed = vars(sys.modules["__main__"])
    assert installed is not notebook
    assert installed.keys().isdisjoint({"huge", "unused", "torch"})
    model = torch.load(tmp_path / "call.pt", weights_only=False)
    assert type(model) is installed["Net"] is not notebook["Net"]
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 5.0))
    assert not capsys.readouterr().out  # no cell ran


def test_what_needs_no_main_program_sends_none(
    notebook: dict[str, Any], tmp_path: Path
) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "call.pt")
    assert not main_definitions.save(tmp_path / "call.pt", tmp_path / "main")
    assert not (tmp_path / "main").exists()


def test_a_class_that_was_typed_in_has_no_source(
    notebook: dict[str, Any], tmp_path: Path
) -> None:
    exec("class Typed(nn.Module):\n    def forward(self): ...\n", notebook)
    torch.save(notebook["Typed"](), tmp_path / "call.pt")
    with pytest.raises(main_definitions.NoSource, match=r"Typed .*module"):
        main_definitions.save(tmp_path / "call.pt", tmp_path / "main")
