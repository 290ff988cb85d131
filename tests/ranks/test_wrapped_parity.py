"""A model that ranks divide computes what one process computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import on_ranks, torchproof

PROGRAMS = Path(__file__).parent / "programs"
LLAMA = str(PROGRAMS / "rank_llama.py")
# ||wrapped - one process|| / ||one process||, of outputs and of each gradient, in
# float32. Sums in another order give 5e-7.
BOUND = 5e-6


def parity(folder: Path, target: str, *cases: str, ranks: int = 2) -> dict[str, Any]:
    path = folder / "parity.json"
    done = on_ranks(PROGRAMS / "wrapped_parity.py", path, target, *cases, ranks=ranks)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def worst(case: dict[str, Any]) -> float:
    return max(float(each) for each in (case["outputs"], *case["gradients"].values()))


@pytest.mark.slow
def test_ranks_that_divide_a_model_compute_the_same(tmp_path: Path) -> None:
    cases = ["tp:none", "fsdp2:none"]
    if torch.__version__ >= (2, 12):  # 2.11 does not compile sizes of DTensors
        cases.append("tp:eager")
    found = parity(tmp_path, "workload:gpt", *cases, "planted:none")
    assert {case: worst(found[case]) < BOUND for case in cases} == dict.fromkeys(
        cases, True
    )
    # The same comparison sees a sum over the ranks that is missing.
    assert found["planted:none"]["outputs"] > 1000 * BOUND
    # FSDP2 divides everything; tensor parallelism leaves the embedding whole.
    assert found["fsdp2:none"]["elements"] == found["one process"] / 2
    assert found["tp:none"]["elements"] < 0.6 * found["one process"]


@pytest.mark.slow
def test_four_ranks_divide_layers_and_shard_them(tmp_path: Path) -> None:
    # Not aot_eager: for sizes of DTensors, AOTAutograd of torch 2.13 recurses too deep.
    case = "tp+fsdp2:eager"
    found = parity(tmp_path, "workload:gpt", case, ranks=4)
    assert worst(found[case]) < BOUND
    assert found[case]["elements"] < 0.3 * found["one process"]


@pytest.mark.slow
def test_the_plan_of_transformers_computes_the_same_with_tied_weights(
    tmp_path: Path,
) -> None:
    cases = ("tp:none", "fsdp2:none")
    found = parity(tmp_path, f"{LLAMA}:make_tied", *cases)
    assert max(worst(found[case]) for case in cases) < BOUND


@pytest.mark.slow
def test_check_finds_nothing_wrong_with_tensor_parallel_layers(tmp_path: Path) -> None:
    flags = ("--ranks", "2", "--wrap", "tp", "--train", "--device", "cpu", "-q")
    backend = ("--compile", "backend=aot_eager", "--format", "json")
    done = torchproof("check", f"{LLAMA}:make", *flags, *backend, cwd=tmp_path)
    checked = json.loads(done.stdout)
    assert checked["findings"] == []
    assert checked["counts"]["graphs"] == 1
    assert checked["counts"]["compiled_calls"] == checked["counts"]["calls"]
