"""Training scripts of library models: where they break, and that the fixes help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules

pytest.importorskip("transformers")
SCRIPT = """\
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(samples):
    ids = pad_sequence(samples, batch_first=True)
    return {"input_ids": ids, "labels": ids.clone()}


torch.manual_seed(0)
config = transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=4)
model = transformers.GPT2LMHeadModel(config)
model.train()
samples = [torch.randint(5, 100, (n,)) for n in LENGTHS]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
COMPILE
for step, batch in enumerate(DataLoader(samples, batch_size=3, collate_fn=collate)):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = LOSS
    (loss / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
    print(step, loss.item())
"""
ONE_BATCH, RAGGED = (9, 12, 7), (9, 12, 12, 7, 17, 11, 10, 8)
COMPILED = 'compiled = torch.compile(model, backend="eager")'
TOGETHER = """\
@torch.compile(backend="eager")
def compute(model, batch):
    outputs = model(**batch)
    return outputs.loss / 2
"""


def write(folder: Path, compiling: str, loss: str, lengths: tuple[int, ...]) -> Path:
    text = SCRIPT.replace("LENGTHS", str(lengths))
    file = folder / "train.py"
    file.write_text(text.replace("COMPILE", compiling).replace("LOSS", loss))
    return file


def test_break_below_the_compiled_function_is_placed_in_it(
    observe: Any, tmp_path: Path
) -> None:
    script = write(tmp_path, TOGETHER, "compute(model, batch)", ONE_BATCH)
    [found] = [f for f in rules.check(observe(str(script))) if f.kind == "graph_break"]
    assert (found.owner, found.function) == ("user", "compute")
    assert (found.source or "").strip() == "outputs = model(**batch)"


LOGGER = "transformers.modeling_utils.logger.warning_once"
SIZES = ("input_ids 0", "input_ids 1", "labels 0", "labels 1")
SETTINGS = (
    "import transformers.modeling_utils",
    f"torch._dynamo.config.ignore_logging_functions.add({LOGGER})",
)


@pytest.mark.slow
def test_every_fix_followed_leaves_nothing(observe: Any, tmp_path: Path) -> None:
    script = write(tmp_path, COMPILED, "compiled(**batch).loss", RAGGED)
    findings = rules.check(observe(str(script)))
    [broken] = [f for f in findings if f.kind in ("graph_break", "skipped_frame")]
    assert broken.owner == "library" and "GPT2LMHeadModel.forward" in broken.message
    recompiles = [f for f in findings if f.kind == "recompile"]
    [at_call] = [f for f in recompiles if f.owner == "user"]
    assert '`batch["input_ids"]`' in at_call.message
    assert "compiled(**batch)" in (at_call.source or "")
    behind = [f for f in recompiles if f is not at_call]
    assert behind and all("modeling_utils.py:" in f.fix for f in behind)
    fixes = " ".join(finding.fix for finding in findings)
    text, call = script.read_text(), '    with torch.autocast("cpu"'
    for line in SETTINGS:
        assert line in fixes
    text = text.replace(COMPILED, "\n".join([*SETTINGS, COMPILED]))
    for name, dim in map(str.split, SIZES):
        mark = f'torch._dynamo.maybe_mark_dynamic(batch["{name}"], {dim})'
        assert mark in fixes
        text = text.replace(call, f"    {mark}\n{call}", 1)
    script.write_text(text)
    assert rules.check(observe(str(script))) == []
