"""Packages compiled ahead of time: what they take and answer, what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packages
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._pytree import tree_map

from torchproof.packs import Unverified
from torchproof.packs.deploy import packages as builder
from torchproof.packs.deploy import verification_inputs
from torchproof.packs.deploy.tensor_function import Refusal, flatten_target
from torchproof.runtime.loading.input_spec import InputSpec
from torchproof.torch_private import Unfit


def rows(number: int, width: int = 8) -> torch.Tensor:
    return torch.linspace(-1, 1, number * width).view(number, width)


@dataclass
class Output:
    logits: torch.Tensor
    count: int


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Any, batch: Any, *, scale: Any = 1.0) -> Any:
        y = torch.relu(self.linear(x)) * scale + batch["shift"]
        batch["shift"].mul_(0.5)
        return Output(y, x.shape[0]), (y.t().contiguous(), [y.sum()])


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x + 1
        return x - 1


class BySize(nn.Module):
    def __init__(self, mod: int = 0, only: int = 0) -> None:
        super().__init__()
        self.mod, self.only = mod, only

    def forward(self, x: Any) -> Any:
        if self.mod and x.shape[0] % self.mod == 0:
            return x * 2
        if self.only and x.shape[0] == self.only:
            return x * 3
        return x + 1


class Joined(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y[1:]


def call(number: int) -> dict[str, Any]:
    return {"x": rows(number), "batch": {"shift": rows(number, 4)}}


def entrance(fn: nn.Module, *calls: Any) -> InputSpec:
    flat = flatten_target(packages.loaded(fn, *calls))
    return builder.entrance_of(flat, builder.exported_model(flat))


# What torch itself makes of a package: there are builds whose loader ends the process.
PLAIN = """
import sys, torch
x = torch.randn(4, 64, device="cuda")
program = torch.export.export(torch.nn.GELU().cuda(), (x,), strict=False)
file = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
torch._inductor.aoti_load_package(file)(x)
"""


@pytest.fixture(scope="module")
def loads_on_cuda(tmp_path_factory: pytest.TempPathFactory) -> bool:
    file = tmp_path_factory.mktemp("plain") / "plain.pt2"
    command = [sys.executable, "-c", PLAIN, str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        pytest.param("cpu", torch.float32, marks=pytest.mark.slow),
        pytest.param("cuda", torch.float32, marks=pytest.mark.gpu),
        pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_package_answers_as_the_model_and_refuses_other_calls(
    device: str, kind: torch.dtype, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a process without the model's code, and in this one."""
    if device == "cuda" and not request.getfixturevalue("loads_on_cuda"):
        pytest.skip("torch's own loader of such packages fails here")

    def made(number: int) -> dict[str, Any]:
        moved: dict[str, Any] = tree_map(lambda x: x.to(device, kind), call(number))
        return moved

    near = 0.02 if device == "cuda" else 1e-5
    model = Net().eval().to(device, kind)
    details = packages.built(tmp_path, packages.loaded(model, made(4), made(6)))
    assert details.device.startswith(device)
    assert "test_aoti_packages" in details.without
    assert {"call 0", "call 1", "x.size(0) = 2"} <= set(details.asked)
    report = packages.verify(tmp_path)
    assert report["ok"], report
    assert report["answers"] == len(details.asked)
    deployed = packages.opened(tmp_path)
    for number in (2, 5, 33):
        mine, others = made(number), made(number)
        mine["x"] = mine["x"].t().contiguous().t()
        answers, eager = deployed(**mine), model(**others)
        assert_close(answers[0].logits, eager[0].logits, rtol=near, atol=near)
        assert answers[0].count == number and not answers[0].logits.requires_grad
        assert_close(answers[1], eager[1], rtol=near, atol=near)
        assert_close(mine["batch"], others["batch"])  # written to
    x = made(4)["x"]
    wrong = [
        (made(1), r"\bx\b.* size 1 .*dimension 0\b.*\b2\b"),
        ({**made(4), "x": made(5)["x"]}, r"batch\['shift'\].* size 4 .*\b5\b"),
        ({**made(4), "x": torch.cat([x, x[:, :1]], 1)}, r"\bx\b.* size 9 .*\b8\b"),
        ({**made(4), "x": x.double()}, r"\bx\b.*\bfloat64\b"),
        ({**made(4), "scale": 2.0}, r"\bscale\b"),
        ({**made(4), "batch": {}}, r"\bno \['batch'\]\['shift'\]"),
        ({**made(4), "batch": {"shift": [x]}}, r"\bshift\b.*\blist\b"),
    ]
    if device == "cuda":
        wrong += [({**made(4), "x": x.cpu()}, r"\bx\b.*\bcpu\b.*\bcuda\b")]
    for arguments, why in wrong:
        with pytest.raises(ValueError, match=why):
            deployed(**arguments)


def test_a_branch_on_values_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(Unverified, match=r"test_aoti_packages\.py:\d+: if"):
        packages.built(tmp_path, packages.loaded(Branch(), (rows(4),)))
    assert not (tmp_path / "pack").exists()
    calls = call(4), {**call(4), "scale": torch.ones(())}  # of several forms
    with pytest.raises(Unverified, match=r"call 1\b.*call 0\b"):
        packages.built(tmp_path, packages.loaded(Net().eval(), *calls))


def test_what_export_assumes_of_sizes_is_held_to() -> None:
    found = entrance(BySize(mod=4), (rows(8),), (rows(12),))
    found.assert_sizes([(16, 8)])
    flat = flatten_target(packages.loaded(BySize(mod=4), (rows(8),), (rows(12),)))
    sizes = [q.inputs[0].shape[0] for q in verification_inputs.of_sizes(flat, found)]
    assert {8, 32} <= {*sizes} and all(size % 4 == 0 for size in sizes)
    with pytest.raises(Unfit, match=r"\(x.size\(0\) % 4\) == 0"):
        found.assert_sizes([(10, 8)])
    joined = entrance(Joined(), (rows(4), rows(5)), (rows(6), rows(7)))
    joined.assert_sizes([(9, 8), (10, 8)])
    with pytest.raises(Unfit, match=r"\by\b.* size 9 .*dimension 0\b"):
        joined.assert_sizes([(9, 8), (9, 8)])
    same = entrance(BySize(), (rows(4),), (rows(4),))
    with pytest.raises(Unfit, match=r" size 5 .*\b4\b"):
        same.assert_sizes([(5, 8)])
    entrance(BySize(), (rows(1),), (rows(4),)).assert_sizes([(1, 8)])
    with pytest.raises(Refusal, match=r"\bsize\b.*\bcall\b"):  # export fixes it
        entrance(BySize(only=6), (rows(6),), (rows(4),))


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(19, 8)

    def forward(self, x: Any) -> Any:
        return x + self.table(torch.arange(x.shape[0]))


def test_a_limit_that_only_eager_has_is_held_to() -> None:
    flat = flatten_target(packages.loaded(Placed(), (rows(4),), (rows(6),)))
    found = builder.entrance_of(flat, builder.exported_model(flat))
    (letter,) = found.ranges
    assert found.ranges[letter].high is None
    assert verification_inputs.limited(flat, found).ranges[letter].high == 19
