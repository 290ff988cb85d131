"""What `check` finds in each workload: the defects of an original, at their lines.

A fixed workload has no finding, and as many graphs as it should have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.records import GraphEvent
from torchproof.records.events import Observation
from torchproof.records.run import Finding

slow = pytest.mark.slow
Observe = Callable[..., Observation]

# The beginning of the source line of each finding, by workload, mode and code.
ORIGINALS: list[Any] = [
    pytest.param(
        "trainstep-original",
        False,
        {
            "GB101": ["gradient_norm = norm.item()", "loss_value = loss.item()"],
            "GB104": ["logger.info("],
            "GB105": [
                "rate = self.scheduler.get_last_lr()[0]",
                "self.optimizer.step()",
                "self.optimizer.zero_grad()",
                "self.scheduler.step()",
            ],
            "GB107": ["self.optimizer.step()"],
            "GB110": ["loss.backward()"],
            "RC202": ["def _train_step("],
            "RC210": ["logger.info(", "rate = self.scheduler.get_last_lr()[0]"],
            "RC212": ["self.losses.append(loss_value)"],
            "RC218": ["self.optimizer.step()"],
            "RC290": ["self.losses.append(loss_value)"],
        },
        marks=slow,
    ),
    pytest.param(
        "nanovlm-original",
        False,
        {
            "GB102": ["if longest > self.trained:"],
            "GB103": ["places = x[mask]"],
            "GB105": ['return self.added[unicodedata.normalize("NFKC", token)]'],
            "GB118": ["return F.scaled_dot_product_attention("],
            "RC201": [
                "def forward(  # type: ignore[override]",
                "def forward(self, positions: Tensor)",
                'image_token = self.tokenizer.id_of("<image>")',
                "logits = self.decode(",
            ],
            "RC202": [
                "def decode(self, x: Tensor",
                "def forward(self, x: Tensor, turn: Rotation)",
                "def forward(self, x: Tensor, turn: Rotation)",
                "def mix(self, query: Tensor",
                "logits = self.decode(",
                "mask = tokens == image_token",
                "return self.out(self.mix(",
                "x = x + self.attention(",
                "x[mask] = features.view_as(places)",
            ],
            "RC204": ["def forward(self, positions: Tensor)"],
            "RC211": ["if images is not None:"],
            "RC212": ["if images is not None:"],
        },
        marks=slow,
    ),
    pytest.param(
        "gpt-original",
        False,
        {
            "GB101": ["self.history.append(spread.item())"],
            "GB102": ["if torch.isinf(x).any():"],
            "GB104": ["print("],
            "RC210": ["logits = self.head(self.norm(x)).clamp(-limit, limit)"],
            "RC212": ["self.history.append(spread.item())"],
            "RC213": ["self.step += 1"],
            "RC290": ["self.step += 1"],
        },
        marks=slow,
    ),
    pytest.param(
        "arrcoc-original",
        False,
        {
            "GB101": ["count = int("],
            "GB102": ["if high == low:"],
            "RC202": [
                "count = int(",
                "def forward(",
                "def forward(self, features: Tensor, relevance: Tensor)",
                "def forward(self, images: Tensor, queries: Tensor)",
                "def normalised(scores: Tensor)",
                "def relevance(self, features: Tensor",
                "salience = self.normalised(",
                "selected = self.allocator(",
                "selected = self.allocator(",
            ],
        },
        marks=slow,
    ),
    pytest.param(
        "megacontext-original",
        False,
        {
            "NC803": ["return self.base(x, turn, at)"],
            "RC201": ["def forward(self, x: Tensor, counts: Tensor | None"],
            "RC202": ["def forward(self, x: Tensor, counts: Tensor | None"],
            "RC212": ["slots = [self.slot(entry, self.limit)"],
            "RC213": ["return (0, tokens, tokens +"],
        },
        marks=slow,
    ),
    pytest.param(
        "megacontext-original",
        True,
        {
            "NC803": ["return self.base(x, turn, at)"],
            "RC201": [
                "def forward(self, context: Context | SessionContext)",
                "def forward(self, x: Tensor, counts: Tensor | None",
            ],
            "RC290": ["def forward(self, context: Context | SessionContext)"],
        },
        marks=slow,
    ),
]
# Workload, mode, and the number of its graphs.
FIXED: list[Any] = [
    ("gpt", False, 1),
    ("arrcoc", False, 1),
    pytest.param("nanovlm", True, 1, marks=slow),
    pytest.param("trainstep", False, 2, marks=slow),
    pytest.param("gpt-flex", False, 1, marks=slow),
    pytest.param("megacontext", True, 3, marks=slow),
]


def observed(observe: Observe, workload: str, *, train: bool) -> Observation:
    """What `check` observes on the CPU."""
    observation = observe(f"workload:{workload}", device="cpu", train=train)
    assert observation.error is None, observation.error
    return observation


@pytest.mark.parametrize(("workload", "train", "expected"), ORIGINALS)
def test_defects_of_an_original(
    workload: str, train: bool, expected: dict[str, list[str]], observe: Observe
) -> None:
    lines: dict[str, list[str]] = {}
    for finding in rules.check(observed(observe, workload, train=train)):
        lines.setdefault(finding.code, []).append(source_line(finding))
    assert lines.keys() == expected.keys()
    for code, starts in expected.items():
        pairs = list(zip(sorted(lines[code]), sorted(starts), strict=True))
        assert all(line.startswith(start) for line, start in pairs), (code, pairs)


def source_line(finding: Finding) -> str:
    assert finding.file and finding.line
    return Path(finding.file).read_text().splitlines()[finding.line - 1].strip()


@pytest.mark.parametrize(("workload", "train", "graphs"), FIXED)
def test_fixed_workload_is_clean(
    workload: str, train: bool, graphs: int, observe: Observe
) -> None:
    observation = observed(observe, workload, train=train)
    assert rules.check(observation) == []
    assert len(observation.of(GraphEvent)) == graphs
