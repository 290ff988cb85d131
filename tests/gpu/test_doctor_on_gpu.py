"""`torchproof doctor` where there is a GPU, and where variables hide it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import torchproof

pytestmark = pytest.mark.gpu


def checks(folder: Path, **variables: str) -> dict[str, dict[str, Any]]:
    done = torchproof("doctor", "--format", "json", cwd=folder, variables=variables)
    # A cache has the name triton too.
    found = [c for c in json.loads(done.stdout)["checks"] if c["group"] == "GPU"]
    return {check["name"]: check for check in found}


def test_each_gpu_runs_a_kernel(tmp_path: Path) -> None:
    told = checks(tmp_path)
    for number in range(torch.cuda.device_count()):
        device = told[f"cuda:{number}"]
        assert device["status"] == "ok", device
        assert torch.cuda.get_device_name(number) in device["value"]
    assert told["triton"]["status"] == told["C compiler"]["status"] == "ok"
    assert "CUDA" not in told


def test_hidden_gpus_are_no_problem(tmp_path: Path) -> None:
    told = checks(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert told["CUDA"]["status"] == "missing" and told["CUDA"]["optional"]
    assert "triton" not in told
