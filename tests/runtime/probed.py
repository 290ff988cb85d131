"""Models that a child process can import, and that go wrong in it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time

import torch
from torch import nn


class Probed(nn.Module):
    """Does its deed at its first call in another process than its maker's."""

    def __init__(self, deed: str, note: str = "") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.deed, self.note, self.home = deed, note, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        act(self.deed, self.note, self.home)
        return self.linear(x)


@torch.compiler.disable
def act(deed: str, note: str, home: int) -> None:
    assert os.getpid() != home, "the model ran in the parent"
    if deed == "segfault":
        ctypes.string_at(0)
    elif deed == "leave":
        print("last words", flush=True)
        os._exit(3)
    elif deed == "hang":
        with open(note, "w") as file:
            file.write(str(subprocess.Popen(["sleep", "1000"]).pid))
        time.sleep(1000)
    elif deed != "nothing":
        raise AssertionError(deed)
