"""Where a file compiles, in which words and order; what of it is not suspected."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from rule_programs import FOLDER

from torchproof.checking import suspicions
from torchproof.records.run import CompileSite


def sites(tmp_path: Path, text: str) -> list[CompileSite]:
    file = tmp_path / "program.py"
    file.write_text("import torch\n" + textwrap.dedent(text))
    return list(suspicions.read([file]).sites)


def test_arguments_are_in_the_words_of_the_source(tmp_path: Path) -> None:
    [site] = sites(
        tmp_path,
        """
        def build(model, mode):
            return torch.compile(
                model.blocks[0], mode=mode, dynamic=None, options={"a": 1}
            )
        """,
    )
    assert (site.line, site.end_line, site.function) == (4, 6, "build")
    assert (site.subject, site.mode, site.dynamic) == (
        "model.blocks[0]",
        "mode",
        "None",
    )
    assert (site.options, site.backend, site.fullgraph) == ('{"a": 1}', None, None)
    assert site.source == "    return torch.compile("


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("@torch.compile\ndef step(x): return x", "step"),
        ("@torch.compile(dynamic=True)\ndef step(x): return x", "step"),
        (
            "import functools\n@functools.partial(torch.compile, dynamic=True)\n"
            "def step(x): return x",
            "step",
        ),
        ("from torch import compile\nf = compile(g)", "g"),
        ("import torch as t\nf = t.compile(model=g)", "g"),
        ("import torchproof\nf = torchproof.compile(g)", "g"),
        ("model.compile(mode='default')", "model"),
        ("for block in blocks:\n    block.compile()", "block"),
        (
            "arguments = TrainingArguments('out', torch_compile=True)",
            "the model of TrainingArguments",
        ),
    ],
)
def test_ways_to_compile(tmp_path: Path, text: str, subject: str) -> None:
    [site] = sites(tmp_path, text)
    assert site.subject == subject


@pytest.mark.parametrize(
    "text",
    [
        "# torch.compile(model)",
        "text = 'torch.compile(model)'",
        "import re\npattern = re.compile('a')",
        "model.compile(optimizer='adam', loss='mse')",
        "arguments = TrainingArguments('out', torch_compile=False)",
        "import keras\nmodel.compile()",
        "flag = torch.compiler.is_compiling()",
    ],
)
def test_what_does_not_compile(tmp_path: Path, text: str) -> None:
    assert sites(tmp_path, text) == []


def test_the_order_with_ddp_and_fsdp(tmp_path: Path) -> None:
    found = sites(
        tmp_path,
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def first(model):
            return DDP(torch.compile(model))

        def named(model):
            model = torch.compile(model)
            return DDP(model)

        def after(model):
            model = DDP(model)
            return torch.compile(model)

        def sharded(model):
            return torch.compile(FSDP(model, use_orig_params=True))

        def other(model, teacher):
            model = DDP(model)
            return torch.compile(teacher)
        """,
    )
    assert [s.order for s in found] == ["before", "before", "after", "after", None]
    assert "DistributedDataParallel" in found[0].observation
    assert "buckets" in found[2].observation and "hooks" in found[3].observation
    assert found[4].observation == ""


# -- what is compiled there ------------------------------------------------------------

SMALL = {
    "without torch": ("def forward(x):\n    print(x.item())\n", set()),
    "a comment on a line": (
        """\
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        print(x)  # torchproof: ignore[GB104]
        print('# torchproof: ignore[GB104]')
        return x.sum().item()  # torchproof: ignore[GB104]
""",
        {("GB104", 5), ("GB101", 6)},
    ),
    "a class that compiles its parts": (
        """\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.compile(torch.nn.Linear(4, 4))
    def forward(self, x):
        print(x)
        return self.body(x)
""",
        set(),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_is_not_compiled_or_is_ignored_gives_nothing(
    name: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    text, expected = SMALL[name]
    program.write_text(text)
    found = suspicions.read([program]).suspicions
    assert {(s.finding.code, s.finding.line) for s in found} == expected


def test_an_expanded_tensor_is_shown_in_the_function_that_is_given_it() -> None:
    read = suspicions.read([FOLDER / "RC204.py"]).suspicions
    [found] = [s for s in read if s.finding.code == "RC204"]
    assert found.finding.function == "Model.forward"
    assert found.shown_in == ("Rotary.forward",)
