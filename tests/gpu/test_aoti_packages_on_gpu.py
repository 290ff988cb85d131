"""Packages on a GPU, verified in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "deploy"))
import packages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # what torch says of tensor cores
]


# What torch itself makes of a package: there are builds whose loader ends the process.
PLAIN = """
import sys
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x) + 1

x = torch.randn(4, 64, device="cuda")
program = torch.export.export(Net().cuda(), (x,), strict=False)
file = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
torch._inductor.aoti_load_package(file)(x)
"""


@pytest.fixture(scope="module")
def loads_packages(tmp_path_factory: pytest.TempPathFactory) -> bool:
    file = tmp_path_factory.mktemp("plain") / "plain.pt2"
    command = [sys.executable, "-c", PLAIN, str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x: Any, shift: Any = None) -> Any:
        y = self.two(torch.nn.functional.gelu(self.one(x)))
        y = y + torch.arange(32, device=x.device)
        return {"y": y if shift is None else y + shift, "rows": x.shape[0]}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_package_answers_on_the_gpu(
    tmp_path: Path, kind: torch.dtype, loads_packages: bool
) -> None:
    if not loads_packages:
        pytest.skip("torch's own loader of such packages fails here")
    model = Net().eval().to("cuda", kind)
    calls = [(torch.randn(n, 64, device="cuda", dtype=kind),) for n in (4, 9)]
    details = packages.built(tmp_path, packages.loaded(model, *calls))
    assert details.device.startswith("cuda")
    report = packages.verify(tmp_path)
    assert report["ok"], report
    deployed = packages.opened(tmp_path)
    wide = torch.randn(7, 130, device="cuda", dtype=kind)[:, 1:65]  # offset and strides
    with torch.no_grad():
        eager = model(wide)
    given = deployed(wide)
    assert given["rows"] == 7 and given["y"].device == wide.device
    torch.testing.assert_close(given["y"], eager["y"], rtol=0.02, atol=0.02)
    with pytest.raises(ValueError, match=r"\bx\b.*\bcpu\b.*\bcuda\b"):
        deployed(wide.cpu())
