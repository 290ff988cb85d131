"""Patterns of users' programs that recompile, beside programs that do it right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.checking import rules
from torchproof.records import Finding

HEAD = """\
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

LENGTHS = (9, 12, 7, 14, 5, 11, 8)
rows = [torch.ones(n, dtype=torch.long) for n in LENGTHS]


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 16, 4))

    def forward(self, x, at):
        self.k.index_copy_(1, at, x)
        return x + self.k.mean(1, keepdim=True)


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = None

    def forward(self, x):
        self.k = x if self.k is None else torch.cat([self.k, x], 1)
        return x + self.k.mean(1, keepdim=True)


net, x = Cached(), torch.ones(1, 5, 4)
"""
COMPILED = 'model = torch.compile(net, backend="eager")'
EMBED = 'embed = torch.compile(nn.Embedding(4, 2), backend="eager")'
TOKENS = "range(5, 9)"
DECODES = f"""
{COMPILED}
x = net(x, torch.arange(5))[:, -1:]
for n in {TOKENS}:
    x = model(x, torch.tensor([n]))
"""
CHOOSES = f"""
{COMPILED}
for at in (torch.arange(5), *(torch.tensor([n]) for n in {TOKENS})):
    x = (model if x.shape[1] == 1 else net)(x, at)[:, -1:]
"""
COMPARES = f"""
{COMPILED}
y = net(x, torch.arange(5))
for n in {TOKENS}:
    z = model(x, torch.arange(5))
"""
LOADS = f"""
{EMBED}
def collate(rows):
    return PADDED

for batch in DataLoader(rows, batch_size=4, collate_fn=collate):
    out = embed(batch)
"""
TO_LONGEST = LOADS.replace("PADDED", "pad_sequence(rows, batch_first=True)")
TO_64 = LOADS.replace(
    "PADDED", "torch.stack([nn.functional.pad(r, (0, 64 - len(r))) for r in rows])"
)
DROPS = TO_64.replace("batch_size=4,", "batch_size=4, drop_last=True,")
MASKED = """
@torch.compile(backend="eager")
def masked(x, mask, scale):
    return x[:, mask] * scale if scale in (2, 3, 5, 7, 8) else x

for n in (2, 3, 5, 7, 8):
    masked(x, torch.tensor([0, 2]), n)
"""
OF_NUMPY = """
import numpy

@torch.compile(backend="eager")
def looked_up(x, table, n):
    return x * torch.as_tensor(table[:, n])

for n in (2, 3, 1, 0):
    looked_up(torch.ones(4), numpy.ones((4, 4), dtype="float32"), n)
"""
LONGER = f"""
{EMBED}
def generated(ids):
    for _ in range(4):
        ids = torch.cat([ids, embed(ids).argmax(-1)[:, -1:]], 1)

generated(torch.ones(1, 1, dtype=torch.long))
"""
FACTORY = """
def make():
    return Grows(), [(torch.ones(1, n, 4),) for n in (5, 1, 1, 1)]
"""


def checked(
    folder: Path, observe_all: Any, **programs: str
) -> dict[str, list[Finding]]:
    targets = []
    for name, text in programs.items():
        file = folder / f"{name}.py"
        file.write_text(HEAD + text)
        targets.append((f"{file}:make" if "def make" in text else str(file), {}))
    found = map(rules.check, observe_all(targets))
    return dict(zip(programs, found, strict=True))


def test_a_right_decode_loop_is_silent(tmp_path: Path, observe_all: Any) -> None:
    found = checked(
        tmp_path, observe_all, decodes=DECODES, chooses=CHOOSES, compares=COMPARES
    )
    for each in (*found["decodes"], *found["chooses"]):
        assert (each.code, each.severity) == ("RC204", "low")  # of the first token
    assert [each.code for each in found["compares"]] == ["NC803"]


def test_batches_of_a_loader(tmp_path: Path, observe_all: Any) -> None:
    texts = {"to_longest": TO_LONGEST, "to_64": TO_64, "drops": DROPS}
    found = checked(tmp_path, observe_all, **texts)
    assert not found["drops"]
    for name, dims in (("to_longest", {0, 1}), ("to_64", {0})):
        sizes = [each for each in found[name] if each.code == "RC201"]
        marks = [mark for each in sizes for mark in each.remedy.marks]
        assert {mark.dimension for mark in marks} == dims, found[name]
        assert {mark.argument for mark in marks} <= {"batch"}
        lines = (HEAD + LOADS).splitlines()
        line = 1 + next(i for i, text in enumerate(lines) if "in DataLoader(" in text)
        assert all(f"line {line} " in each.cause for each in found[name])


def test_what_only_looks_like_a_pattern(tmp_path: Path, observe_all: Any) -> None:
    texts = {"masked": MASKED, "of_numpy": OF_NUMPY, "longer": LONGER}
    found = checked(tmp_path, observe_all, **texts)
    assert all(found.values())
    edits = [f for each in found.values() for f in each if f.remedy.kind == "edit"]
    assert not edits


def test_a_target_that_torchproof_calls_has_no_line_to_edit(
    tmp_path: Path, observe_all: Any
) -> None:
    found = checked(tmp_path, observe_all, factory=FACTORY)["factory"]
    [decode] = [each for each in found if each.code == "RC202"]
    assert decode.remedy.kind == "none" and "static cache" in decode.remedy.why
