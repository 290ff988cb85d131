"""The command, once from end to end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import check_runs
import failing
import forked_commands
import pytest

from torchproof import packs
from torchproof.packs import repro
from torchproof.records.run import Run
from torchproof.targets.options import Options
from torchproof.targets.target import Target

PROGRAM = '''
"""A program with one failure."""

import torch


class HarvestModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fields = torch.nn.Linear(4, 4)

    def forward(self, grain):
        grain = self.fields(grain)
        # What the mill wants to know.
        weight = grain.sum().item()
        return grain * weight


def make():
    return HarvestModel(), [(torch.ones(2, 4),)]
'''


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mill")
    (folder / "mill.py").write_text(PROGRAM)
    path = folder / "bug.tar.gz"
    done = forked_commands.torchproof(
        *("pack", "mill.py:make", "--for", "repro", "--effort", "quick", "-q"),
        *("--budget", "1s", "-o", str(path)),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return path


def test_a_break_is_packed_without_the_names_of_its_author(packed: Path) -> None:
    shown = forked_commands.torchproof("show", str(packed), cwd=packed.parent)
    assert "GB0124" in shown.stdout and "repro.py" in shown.stdout
    everything = " ".join(failing.texts(packed).values())
    assert "HarvestModel" not in everything and "the mill wants" not in everything


@pytest.mark.slow  # the command has run it already, in a process without torchproof
def test_the_pack_fails_for_a_stranger(packed: Path, tmp_path: Path) -> None:
    python = failing.bare_python(tmp_path / "venv")
    assert failing.importable(python) == ["torch"]
    ran = failing.ran(failing.unpacked(packed, tmp_path / "empty"), python)
    assert ran.code == 1
    assert ran.verdict.startswith("FAILS AS STATED: graph break, GB0124")


SCRIPT = """
from pathlib import Path

import torch

if Path(__file__).name == "mill.py":
    with open("runs.txt", "a") as runs:
        runs.write("run ")


@torch.compile(backend="eager")
def grind(grain):
    flour = grain.sin()
    return flour + 1 if flour.sum() > 0 else flour - 1


grind(torch.ones(3))
"""


@pytest.mark.slow
def test_a_script_runs_once_in_the_verb(tmp_path: Path) -> None:
    (tmp_path / "mill.py").write_text(SCRIPT)
    done = forked_commands.torchproof(
        *("pack", "mill.py", "--for", "repro", "--effort", "quick", "-q"),
        *("--budget", "5s", "-o", str(tmp_path / "bug.tar.gz")),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs.txt").read_text() == "run "


def test_a_script_that_was_checked_is_not_recorded_again(tmp_path: Path) -> None:
    script = Target("mill.py", "script", str(tmp_path / "mill.py"))
    finding = dataclasses.replace(check_runs.ITEM, evidence=("GB0124", "torch: x"))
    run = Run("r", "mill.py", "as-written", {"device": "cpu"}, {}, (finding,))
    recorded = mock.Mock(side_effect=RuntimeError("recorded"))
    collected = mock.MagicMock()  # the real one starts pip
    collected.return_value.__enter__.return_value.text.return_value = ""
    with (
        mock.patch.object(repro, "record_target", recorded),
        mock.patch.object(repro.versions, "CollectEnv", collected),
    ):
        for has_run, expected in ((True, packs.Unverified), (False, RuntimeError)):
            with pytest.raises(expected):
                repro.pack(
                    repro.Subject(run, script, Options(), has_run=has_run),
                    repro.ReproOptions(),
                    dest=tmp_path / "bug.tar.gz",
                    overwrite=False,
                    progress=lambda _: None,
                    command="torchproof pack mill.py",
                )
    recorded.assert_called_once()
