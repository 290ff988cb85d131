"""Verbs on a GPU, in processes of their own: what their documents say there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import torchproof
from test_timelines import assert_valid, of

pytestmark = pytest.mark.gpu


def document(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    done = torchproof(
        *arguments, "--format", "json", "-q", cwd=folder, variables=variables
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def written(folder: Path, text: str, name: str = "model.py") -> str:
    (folder / name).write_text(text)
    return name


# -- check -----------------------------------------------------------------------------

MOVED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x):
        assert x.is_cuda and self.fc.weight.is_cuda
        h = self.fc(x)
        if h.sum() > 0:
            h = h * 2
        return h * h.mean().item()

def make():
    return Net(), [(torch.randn(4, 8),), (torch.randn(4, 8),), (torch.randn(6, 8),)]
"""
TWO_DEVICES = """\
import torch

def make():
    def scale(x):
        return x * 2 + 1
    return scale, [(torch.ones(4, device="cuda"),), (torch.ones(4),)]
"""
REDUCED = """\
import torch

def make():
    net = torch.nn.Linear(8, 8, device="cuda")
    step = torch.compile(lambda x: net(x).relu(), mode="reduce-overhead")
    def driver(x):
        return step(x).clone()
    return driver, [(torch.randn(4, 8, device="cuda"),) for _ in range(3)]
"""


@pytest.mark.parametrize(
    ("source", "flags", "findings"),
    [
        (MOVED, ["--device", "cuda"], {("GB101", 13), ("GB102", 11), ("RC201", 8)}),
        (TWO_DEVICES, [], {("RC206", 4)}),
        (REDUCED, ["--as-written"], set()),
    ],
    ids=["moved to the GPU", "two devices", "reduce-overhead"],
)
def test_findings_of_check(
    source: str, flags: list[str], findings: set[tuple[str, int]], tmp_path: Path
) -> None:
    written(tmp_path, source)
    run = document(tmp_path, "check", "model.py:make", "--effort", "quick", *flags)
    found = {(each["code"], each["line"]) for each in run["findings"]}
    assert findings <= found and bool(findings) == bool(found)
    if "--device" in flags:
        assert run["environment"]["device"] == "cuda"
        assert "NVIDIA" in run["environment"]["gpu"]
    if not findings:
        assert run["counts"]["compiled_calls"] == 3


# -- bench -----------------------------------------------------------------------------

TIMED = '''
import torch

BUSY = 20_000_000  # cycles: some 10 ms, whatever the clock


def before_call(fn, index):
    if getattr(fn, "busy_before", False):
        torch.cuda._sleep(BUSY)


class Queued(torch.nn.Module):
    """Only queues its work, on another stream, or none."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self.busy_before = where == "before"
        self.stream = torch.cuda.Stream()
        self.weight = torch.nn.Parameter(torch.ones(8, device="cuda"))

    def forward(self, x):
        if self.where == "elsewhere":
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(BUSY)
        return x * self.weight


def elsewhere(): return Queued("elsewhere"), [(torch.ones(8, device="cuda"),)]
def before(): return Queued("before"), [(torch.ones(8, device="cuda"),)]


class Copying(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.to(self.weight.device))


def copying(): return Copying(8, 8, device="cuda"), [(torch.ones(4, 8),)]


'''


def rows(folder: Path, factory: str) -> list[dict[str, Any]]:
    written(folder, TIMED)
    flags = ("--seconds", "0.5", "--strategies", "eager", "--repeats", "1")
    run = document(folder, "bench", f"model.py:{factory}", *flags)
    found: list[dict[str, Any]] = run["measurements"]
    return found


def test_queued_work_is_timed_if_it_is_of_the_step(tmp_path: Path) -> None:
    """The same work, queued by the step on another stream, and before the step."""
    [within], [before] = rows(tmp_path, "elsewhere"), rows(tmp_path, "before")
    assert within["median_ms"] > before["median_ms"]


def test_inputs_on_the_host_are_noted(tmp_path: Path) -> None:
    [row] = rows(tmp_path, "copying")
    assert any("inputs" in note and "CPU" in note for note in row["notes"])


# -- traces ----------------------------------------------------------------------------

SCRIPT = """
import torch

@torch.compile(mode="reduce-overhead", dynamic=False)
def step(x):
    return (x @ x).relu() + 1

for size in (64, 64, 64, 64, 96, 96, 96):
    step(torch.ones(size, size, device="cuda"))
torch.cuda.synchronize()
"""
LAYERS = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    return model, [(torch.ones(4, 64, device="cuda"),)]
"""


def traced(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = torchproof(*arguments, "--trace", "trace.json", "-q", cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    events: list[dict[str, Any]] = found["traceEvents"]
    assert_valid(events)
    return events


def lies_in(event: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(other["ts"] <= event["ts"] <= other["ts"] + other["dur"])


def test_recordings_lie_within_the_calls_that_make_them(tmp_path: Path) -> None:
    written(tmp_path, SCRIPT, "train.py")
    trace = traced(tmp_path, "check", "train.py", "--effort", "quick")
    calls, recordings = of(trace, "call"), of(trace, "cudagraph")
    assert recordings and len(calls) == 7
    within = {c["name"] for each in recordings for c in calls if lies_in(each, c)}
    assert {"call 2", "call 6"} <= within  # the first call of a size warms up
    assert "call 4" not in within and "call 7" not in within  # replays
    # Processes of Inductor's pool run the Triton compiler.
    assert "waiting for kernels" in {each["name"] for each in of(trace, "phase")}


# -- packs -----------------------------------------------------------------------------

HELD = """
import torch

class Collector:
    def __init__(self):
        self.encode = torch.compile(self.encoder, mode="reduce-overhead")
        self.weight = torch.randn(8, 8, device="cuda")

    def encoder(self, batch):
        hidden = torch.relu(batch @ self.weight)
        return hidden + hidden.mean()

    def __call__(self, batches):
        with torch.no_grad():
            collected = [self.encode(batch) for batch in batches]
            return torch.stack(collected).sum((1, 2))

def make():
    batches = [torch.full((8, 8), i + 1.0, device="cuda") for i in range(4)]
    return Collector(), [(batches,)]
"""


def test_a_failure_of_cuda_graphs_is_packed_and_shown_again(tmp_path: Path) -> None:
    written(tmp_path, HELD)
    flags = ("--effort", "full", "--select", "CG30", "--budget", "60s", "--as-written")
    done = torchproof(
        *("pack", "model.py:make", "--for", "repro", "-o", "pack.tar.gz", *flags),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with tarfile.open(tmp_path / "pack.tar.gz") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    [repro] = (tmp_path / "out").rglob("repro.py")
    again = subprocess.run(
        [sys.executable, "-I", repro], cwd=repro.parent, capture_output=True, text=True
    )
    assert again.returncode == 1, again.stdout[-2000:] + again.stderr[-2000:]
    assert again.stdout.splitlines()[-1].startswith("FAILS AS STATED: ")


# -- doctor ----------------------------------------------------------------------------


def gpu_checks(folder: Path, **variables: str) -> dict[str, dict[str, Any]]:
    done = torchproof("doctor", "--format", "json", cwd=folder, variables=variables)
    # A cache has the name triton too.
    found = [c for c in json.loads(done.stdout)["checks"] if c["group"] == "GPU"]
    return {check["name"]: check for check in found}


def test_doctor_runs_a_kernel_on_each_gpu(tmp_path: Path) -> None:
    checks = gpu_checks(tmp_path)
    for number in range(torch.cuda.device_count()):
        device = checks[f"cuda:{number}"]
        assert device["status"] == "ok", device
        assert torch.cuda.get_device_name(number) in device["value"]
    assert checks["triton"]["status"] == checks["C compiler"]["status"] == "ok"
    hidden = gpu_checks(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert hidden["CUDA"]["status"] == "missing" and hidden["CUDA"]["optional"]


# -- ranks -----------------------------------------------------------------------------


def test_a_factory_runs_under_nccl(tmp_path: Path) -> None:
    written(tmp_path, LAYERS)
    flags = ("--ranks", "1", "--wrap", "fsdp2", "--device", "cuda", "--train")
    [rank] = document(tmp_path, "check", "model.py:make", *flags)["ranks"]["ranks"]
    assert rank["outcome"] == "finished"


def test_more_ranks_than_gpus_are_refused_in_one_line(tmp_path: Path) -> None:
    written(tmp_path, LAYERS)
    count = torch.cuda.device_count() + 1
    flags = ("--ranks", str(count), "--wrap", "ddp", "--device", "cuda", "-q")
    done = torchproof("check", "model.py:make", *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "GPU" in done.stderr


# -- documents -------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graph.md"


@pytest.mark.filterwarnings("ignore")
def test_the_programs_of_the_page_on_graphs_are_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile("".join(blocks), str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "3 of 3 calls" in printed and "1 recordings" in printed
    assert "host_sync" in printed
    padded = names["padded"]
    assert padded.falls_back == [] and padded.status().replays == 1, padded.status()
    assert "torch.Size([3, 11, 4])" in printed
