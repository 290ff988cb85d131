"""What code does with a value that tracing does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.checking.static.value_uses import decides
from torchproof.records import blame

SOURCE = """
import random, time, torch
from torch.nn import functional as ops
from torch.nn.functional import cross_entropy
total, best, meter = 0.0, {}, Meter()
def mean_of(x):
    return {helper}
def caller(x):
    return x if mean_of(x) > 2 else -x
def by_size(x):
    return x if len(x) > 2 else -x
def scaled(x, by):
    return x / by
class Net:
    def __init__(self):
        self.mix = nn.MultiheadAttention(8, 2)
    def check(self, n):
        assert n > 2
    def f(self, x, y, out):
        {body}
"""
NUMBER, LIST, ROWS = "x.sum().item()", "x.tolist()", "x.nonzero()"
BODIES = [
    (NUMBER, f"n = {NUMBER}; return x * n", False),
    (NUMBER, f"n = {NUMBER}; return torch.zeros(int(n)) + x", False),
    (NUMBER, f"n = {NUMBER}; return x if n > 2 else -x", True),
    (NUMBER, f"n = {NUMBER}; m = n + 1; y = [x][m > 2]", True),
    (NUMBER, f"n = {NUMBER}; y = x * n; return y.cos() if y.max() > 1 else y", False),
    (NUMBER, f"n = {NUMBER}; return helper(x, n)", True),
    (NUMBER, f"n = {NUMBER}; return scaled(x, n)", False),
    (NUMBER, f"return scaled(by={NUMBER}, x=x)", False),
    (NUMBER, f"self.check({NUMBER})", True),
    (NUMBER, f"n = {NUMBER}; return f'{{n}}'", True),
    (NUMBER, f"n = {NUMBER}; return x / math.sqrt(n)", False),
    (NUMBER, f"self.n = {NUMBER}; return x", False),
    (NUMBER, f"self.n += {NUMBER}; return x", True),
    (NUMBER, f"self.n = {NUMBER}; return x * self.n", True),
    (NUMBER, f"return [x for _ in range({NUMBER})]", True),
    (NUMBER, f"return x[:, :{NUMBER}]", False),
    (NUMBER, f"return x[:, {NUMBER}]", True),
    (NUMBER, f"return list(x)[:{NUMBER}]", True),
    (NUMBER, f"meter.update({NUMBER}, x.shape[0])", True),
    (NUMBER, f"out.add({NUMBER})", True),
    (NUMBER, f"n = {NUMBER}; time.sleep(n)", True),
    (NUMBER, f"n = int({NUMBER}); torch.manual_seed(n)", True),
    (NUMBER, f"return torch.clamp(x, max={NUMBER}) + ops.relu(x)", False),
    (NUMBER, f"return ops.dropout(x, {NUMBER})", False),
    (NUMBER, f"y = y.clone()\n        y.mul_({NUMBER}); return y", False),
    (NUMBER, f"global total; total += {NUMBER}; return x", True),
    (NUMBER, f"total = 1.0\n        total += {NUMBER}; return x * total", False),
    (NUMBER, f"x = {NUMBER}; return y * x", False),
    (NUMBER, f"best['loss'] = {NUMBER}; return x", True),
    (NUMBER, f"best = {{}}\n        best['loss'] = {NUMBER}; return x, best", False),
    (NUMBER, f"self.history.append({NUMBER} / 2)", True),
    (NUMBER, f"found = []\n        found.append({NUMBER}); return x, found", False),
    (NUMBER, f"return [e(x) for e in self.experts[:{NUMBER}]]", True),
    (NUMBER, f"n = max({NUMBER}, 1); x = x[:n]; return self.net(x)", False),
    (NUMBER, f"x = x[:{NUMBER}]; return x if x.shape[0] > 3 else -x", True),
    (NUMBER, f"return x, {{'loss': {NUMBER}}}", False),
    (NUMBER, f"return {{{NUMBER}: x}}", True),
    (LIST, f"return [p.mean(0) for p in torch.split(y, {LIST})]", False),
    (LIST, f"return [i for i, t in enumerate({LIST}) if t == 1]", True),
    (LIST, f"return out[tuple({LIST})]", True),
    (LIST, f"return {LIST}", False),
    (LIST, f"h, w = {LIST}; return y.view(h, w)", False),
    (ROWS, f"rows = {ROWS}.squeeze(1); return self.embed(x[rows]).mean(0)", False),
    (ROWS, f"rows = {ROWS}; return x.new_zeros(len(rows), rows.shape[1])", False),
    (ROWS, f"rows = {ROWS}; return x if len(rows) else -x", True),
    (ROWS, f"a, b = {ROWS}\n        if a.numel() == 0: return x", True),
    (ROWS, f"for row in {ROWS}: x = x + row", True),
    (ROWS, f"return by_size({ROWS})", True),
    (ROWS, f"return cross_entropy(x[{ROWS}], y)", False),
    (ROWS, f"out[{ROWS}] += 1; return out", False),
    (ROWS, f"return {ROWS}.tolist()", True),
    (ROWS, f"rows = x[{ROWS}]; return rows @ rows.mT", True),
    (ROWS, f"rows = x[{ROWS}]; return self.mix(rows, rows, rows)", True),
]


@pytest.mark.parametrize(("value", "body", "decided"), BODIES)
def test_what_python_decides_by(
    value: str, body: str, decided: bool, tmp_path: Path
) -> None:
    file = tmp_path / "f.py"
    text = SOURCE.replace("{body}", body).replace("{helper}", "x.mean()")
    file.write_text(text)
    blame.forget()
    line = text[: text.index(value, text.index(body))].count("\n") + 1
    assert decides(str(file), line, value, number=value != ROWS) == decided


@pytest.mark.parametrize(
    ("helper", "value", "decided"),
    [
        ("x.mean().item()", "x.mean().item()", True),  # its caller tests it
        ("(x * x.mean().item()).sum()", "x.mean().item()", False),
        ("x.mean().item() and None", "x.mean().item()", True),
        ("meter.show(f'{x.mean().item()}')", "meter.show(f'{x.mean().item()}')", True),
    ],
)
def test_what_a_helper_returns(
    helper: str, value: str, decided: bool, tmp_path: Path
) -> None:
    file = tmp_path / "f.py"
    text = SOURCE.replace("{body}", "pass").replace("{helper}", helper)
    file.write_text(text)
    blame.forget()
    line = text[: text.index(helper)].count("\n") + 1
    assert decides(str(file), line, value, number=True) == decided
