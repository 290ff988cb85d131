"""How many steps a script can make, read from the loops around its calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from forked_commands import torchproof

BEGINNING = """\
import sys
from torchproof.measure.planned_steps import planned_steps

def found():
    print(planned_steps(sys._getframe(1)))
    sys.exit()

class Loader:
    def __len__(self):
        return 5
    def __iter__(self):
        return iter(range(5))

class Endless:
    def __iter__(self):
        return iter(int, 1)

class arguments:
    steps = 7

loader = Loader()
"""
SCRIPTS = {
    "15": "for step in range(15):\n    found()",
    "7": "for step in range(arguments.steps):\n    found()",
    "35": """\
        def main(steps):
            for epoch in range(steps):
                for number, batch in enumerate(loader):
                    found()

        if __name__ == "__main__":
            main(arguments.steps)
        """,
    "4": """\
        def train():
            for batch in zip(loader, (1, 2, 3, 4)):
                found()

        train()
        """,
    "6": "for x in [1, 2]:\n    for y in range(0, len(loader), 2):\n        found()",
}
UNKNOWN = {
    "while": "while True:\n    found()",
    "no length": "for batch in Endless():\n    found()",
    "no loop": "found()",
    "call": "def data():\n    return [1]\nfor batch in data():\n    found()",
    "two loops": """\
        def main():
            for step in range(2):
                found()
            for step in range(900):
                found()

        main()
        """,
    "called twice": """\
        def train(steps):
            for step in range(steps):
                found()

        train(2)
        train(900)
        """,
    "comprehension": "[found() for step in range(3)]",
}


def run(source: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(BEGINNING + textwrap.dedent(source))
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()


@pytest.mark.parametrize("count", SCRIPTS)
def test_loops_with_a_length_are_counted(count: str, tmp_path: Path) -> None:
    assert run(SCRIPTS[count], tmp_path) == count


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_source_does_not_show_is_unknown(name: str, tmp_path: Path) -> None:
    assert run(UNKNOWN[name], tmp_path) == "None"


TRAIN = """\
import time
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
compiled = torch.compile(model, backend="eager")
for step in range(15):
    compiled(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("", id="no call after the loop", marks=pytest.mark.slow),
        pytest.param("compiled(torch.ones(2, 4))\n", id="a call after the loop"),
    ],
)
def test_a_script_with_too_few_steps_is_stopped_at_once(
    more: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN + more)
    begun = time.monotonic()
    done = torchproof("bench", "train.py", "-q", cwd=tmp_path)
    assert time.monotonic() - begun < 55
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("torchproof: error: train.py makes at most 15 steps")
    assert "28 or more" in done.stderr
    assert "--seconds" not in done.stderr
