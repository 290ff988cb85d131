"""`torchproof fix script.py`: unmodified scripts, run again in real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import pytest
from forked_commands import Done, torchproof

from torchproof.fixing.script_proof import ScriptProver
from torchproof.records import Overlay, UserError
from torchproof.targets import Options, parse

NET = """\
import torch


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        if y.sum() > 0:
            y = y * 2
        else:
            y = y - 1
        return y
"""
TRAIN = """\
import subprocess
import sys
import time

assert sys.argv[1:] == ["--steps", "3"]
import torch
from net import Gate


def main():
    model = Gate()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(int(sys.argv[2])):
        loss = compiled(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: {loss.item():.4f}, {time.time()}")
    sys.stdout.buffer.write(b"done")
    subprocess.run([sys.executable, "-c", ""], stdout=sys.stdout, check=True)
    with open("losses.txt", "a") as file:
        file.write("run ")


if __name__ == "__main__":
    main()
"""
BREAK = """\
import torch, time


@torch.compile
def step(x):
    return x * 2 if x.sum() > 0 else x - 1


"""


def fix(folder: Path, text: str, *flags: str) -> Done:
    """`torchproof fix script.py --effort quick` in a folder."""
    (folder / "script.py").write_text(textwrap.dedent(text))
    words = list(flags)
    cut = words.index("--") if "--" in words else len(words)
    command = ["fix", "script.py", "--effort", "quick", *words[:cut], "-q"]
    return torchproof(*command, *words[cut:], cwd=folder)


def test_a_script_is_proved_by_running_it_and_its_module_is_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(NET)
    flags = ("--write", "--yes", "--format", "json", "--", "--steps", "3")
    done = fix(tmp_path, TRAIN, *flags)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    [applied] = run["fixes"]
    assert applied["status"] == "applied" and applied["file"].endswith("net.py")
    receipt = applied["receipt"]
    assert receipt["breaks"] == [1, 0] and receipt["by_script"]
    # The outputs and arguments of three calls, two parameters and two gradients.
    assert receipt["compared"] == 10 and receipt["unseen_inputs"] == 0
    assert "torch.where(y.sum() > 0, y * 2, y - 1)" in (tmp_path / "net.py").read_text()
    assert (tmp_path / "script.py").read_text() == TRAIN
    runs = (tmp_path / "losses.txt").read_text().split()
    assert len(runs) == run["fixing"]["proofs"] == 3
    assert run["options"]["arguments"] == ["--steps", "3"]


@pytest.mark.slow
def test_generated_code_runs_and_a_setting_becomes_a_line(tmp_path: Path) -> None:
    text = """\
        import torch

        def total(x):
            return x * x.sum().item()

        compiled = torch.compile(total)
        for step in range(3):
            print(compiled(torch.ones(4) + step).shape)
        """
    done = fix(tmp_path, text, "--effort", "normal", "--write", "--format", "json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    [applied] = [each for each in run["fixes"] if each["status"] == "applied"]
    assert applied["receipt"]["backend"] == "generated code"
    assert not applied["settings"]  # lines of the script
    again = torchproof("check", "script.py", "--effort", "quick", "-q", cwd=tmp_path)
    assert again.returncode == 0 and "breaks 0" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("step(torch.ones(3))\ntorch.save([], 'end.pt')\n", "end.pt.*--yes"),
        ("step(torch.ones(3) * (time.time_ns() % 999_983))\n", "call 0"),
        ("torch.manual_seed(time.time_ns())\nstep(torch.ones(3))\n", "random numbers"),
        ("step(torch.ones(3))\nopen(__file__, 'a').write('#')\n", "changed while it"),
        ("step(torch.ones(3))\nraise SystemExit('no data')\n", "no data"),
    ],
)
def test_without_a_proof_nothing_is_written(
    tmp_path: Path, end: str, reason: str
) -> None:
    done = fix(tmp_path, BREAK + end, "--write")
    assert done.returncode == 2 and not done.stdout
    [line] = done.stderr.splitlines()[-1:]
    assert re.search(reason, line)
    assert (tmp_path / "script.py").read_text().rstrip("#") == BREAK + end


WRITES = """\
import os, sys, tempfile
from pathlib import Path

from torchproof.fixing.written_files import Notes
from torchproof.targets import parse

notes = Notes(parse(sys.argv[1]))
{text}
print(*notes.files())
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("open('a.txt', 'w').close()", ["a.txt"]),
        ("os.open('a.txt', os.O_CREAT | os.O_RDWR)", ["a.txt"]),
        ("import torch; torch.save([], 'a.pt')", ["a.pt"]),  # by native code
        ("os.chdir('deep'); Path('b').touch()", ["deep/b"]),
        ("os.rename('old', 'new')", ["new", "old"]),
        ("os.remove('old')", ["old"]),
        ("os.chdir('deep'); os.remove('../old')", ["old"]),
        ("open('old').read(); os.makedirs('deep', exist_ok=True)", []),
        ("Path('.cache').mkdir(); Path('.cache/a').write_text('')", []),
        ("tempfile.TemporaryDirectory().cleanup(); open(os.devnull, 'w')", []),
        ("tempfile.NamedTemporaryFile().write(b'x')", []),
    ],
)
def test_what_a_script_writes_is_known(
    text: str, found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "old").write_text("")
    (tmp_path / "deep").mkdir()
    (tmp_path / "script.py").write_text("")
    command = [sys.executable, "-c", WRITES.format(text=text), "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == found, done.stderr


def test_a_long_script_runs_again_only_if_it_may(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    for yes in (False, True):
        prover = ScriptProver(parse(str(script)), Options(), tmp_path, yes=yes)
        prover._seconds, prover._original = 61.0, Mock()
        prover._start = Mock(side_effect=KeyboardInterrupt)
        stops = KeyboardInterrupt if yes else UserError
        with pytest.raises(stops, match=None if yes else "61 s.*--yes"):
            prover.prove(Overlay())
