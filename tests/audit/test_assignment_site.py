"""The statement that stored what a holder holds."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from torchproof.observe.audit.assignment_site import assignment_site
from torchproof.records.run import Frame

SOURCE = textwrap.dedent(
    """\
    class Session:
        def __init__(self):
            self.scores = None
            self.history = {}

        @staticmethod
        def other(self):
            self.scores = 0

        def step(self, net, x):
            out = net(x)
            self.scores = out
            self.history["x"].append(out)
            first, last = out, out
            outs = [
                net(each)
                for each in x
            ]
            return outs, first, last

        def run(self, net, x):
            controller = self.controller
            controller.remember(net(x))

        def remember(self, out):
            self.drift = out.detach()

        def vary(self, net, x):
            variant.policy_scores = net(x)
            self.variants.append(variant)
    """
)


@pytest.mark.parametrize(
    ("path", "produced", "line"),
    [
        ("out", 11, 11),
        ("session.scores", 11, 12),
        ("self.history['x'][3]", 11, 13),
        ("last", 11, 14),
        ("outs[0]", 16, 15),
        ("net.weight.grad", 11, None),
        ("nowhere", 11, None),
        ("out.past.layers[0].keys", 11, 11),
        ("controller.drift", 23, 26),
        ("controller.gone", 23, None),
        ("tracker.variants[0].policy_scores", 29, 29),
        ("tracker.variants[0]", 29, 30),
    ],
)
def test_the_nearest_store(
    tmp_path: Path, path: str, produced: int, line: int | None
) -> None:
    file = tmp_path / "session.py"
    file.write_text(SOURCE)
    stored = assignment_site(path, [Frame(str(file), produced, "step")])
    assert (stored.line if stored else None) == line
