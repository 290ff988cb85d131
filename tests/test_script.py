"""Unmodified scripts: run as `__main__` in a real child, observed as they are."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import forked_commands
import psutil
import pytest
from commands import Done

from torchproof.targets import script


def check(
    folder: Path,
    source: str,
    *flags: str,
    arguments: tuple[str, ...] = (),
    run: Callable[..., Done] = forked_commands.torchproof,
) -> tuple[dict[str, Any], Done]:
    """`torchproof check script.py` in a folder; the run as JSON, and the process."""
    (folder / "script.py").write_text(textwrap.dedent(source))
    command = ["check", "script.py", "--format", "json", "--fail-on", "never", *flags]
    done = run(*command, "--", *arguments, cwd=folder)
    return (json.loads(done.stdout) if done.stdout else {}), done


def lines(run: dict[str, Any], code: str) -> list[int]:
    return sorted(f["line"] for f in run["findings"] if f["code"] == code)


WAYS = """\
    import sys

    assert "torch" not in sys.modules
    assert __name__ == "__main__" and sys.argv[1:] == ["--rate", "3"]
    import torch

    @torch.compile
    def decorated(x):
        print("decorated")
        return x + 1

    @torch.compile(dynamic=False)
    def with_arguments(x):
        return x * 2 if x.sum() > 0 else x

    def plain(x):
        return x.sin() * x.mean().item()

    class Block(torch.nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            return x.cos()

    in_place = Block()
    in_place.compile()
    compiled = torch.compile(plain)
    for step in range(3):
        decorated(torch.ones(2)); with_arguments(torch.ones(2 + step))
        compiled(torch.ones(2)); in_place(torch.ones(2))
    for block in [torch.nn.Linear(2, 2) for _ in range(2)]:
        torch.compile(block)(torch.ones(1, 2))
    print("own-output")
"""


def test_every_way_of_compiling_is_observed(tmp_path: Path) -> None:
    run, done = check(
        tmp_path,
        WAYS,
        *("--effort", "quick"),
        arguments=("--rate", "3"),
        run=commands.torchproof,
    )
    assert done.returncode == 0, done.stderr
    assert run["strategy"] == "as-written"
    assert run["counts"]["calls"] == 14
    assert run["counts"]["compiled_calls"] == 14
    assert lines(run, "GB104") == [9]
    assert lines(run, "GB102") == [14]
    assert lines(run, "GB101") == [17]
    assert sorted(lines(run, "RC201")) == [13, 14]  # and what follows the break
    assert not any(f["cause_of"] for f in run["findings"] if f["line"] == 13)
    [asked] = [f for f in run["findings"] if f["code"] == "GB107"]
    assert (asked["line"], asked["status"], asked["count"]) == (21, "intentional", 3)
    assert "own-output" in done.stderr
    assert run["exit_code"] == 0


def test_compile_error_is_a_finding_and_the_script_goes_on(tmp_path: Path) -> None:
    source = """\
    import torch

    @torch.compile
    def tolerant(x):
        try:
            return x.view(3, 3)
        except RuntimeError:
            return x.view(2, 4)

    @torch.compile
    def later(x):
        return x * x.sum().item()

    print(tolerant(torch.ones(8)).shape, later(torch.ones(2)))
    """
    run, done = check(tmp_path, source)
    assert done.returncode == 0, done.stderr
    assert lines(run, "CE701") == [6]
    assert lines(run, "GB101") == [12]
    assert "torch.Size([2, 4])" in done.stderr
    [error] = [f for f in run["findings"] if f["code"] == "CE701"]
    assert error["kind"] == "compile_error" and "x.view(3, 3)" in error["message"]


def test_error_of_the_program_itself_is_not_blamed_on_the_compiler(
    tmp_path: Path,
) -> None:
    source = """\
    import torch

    @torch.compile
    def double(x):
        return x.view(3, 3) * 2

    double(torch.ones(9))
    double(torch.ones(8))
    """
    run, done = check(tmp_path, source, "--effort", "quick")
    assert done.returncode == 2
    assert "shape '[3, 3]' is invalid" in run["error"]
    assert not [f for f in run["findings"] if f["kind"] in {"compile_error", "no_op"}]


@pytest.mark.slow
def test_timeout_ends_the_script_and_keeps_what_was_seen(tmp_path: Path) -> None:
    source = """\
    import subprocess, sys, time, torch

    @torch.compile
    def step(x):
        print("seen")
        return x + 1

    step(torch.ones(2))
    wait = "import time; time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", wait, "orphan-marker"])
    time.sleep(600)
    """
    run, done = check(tmp_path, source, "--timeout", "20")
    assert done.returncode == 2
    assert run["ending"] == "timeout"
    assert lines(run, "GB104") == [5]
    saved = list((tmp_path / ".torchproof" / "runs").glob("*/run.json"))
    assert [json.loads(p.read_text())["id"] for p in saved] == [run["id"]]
    left = [
        p
        for p in psutil.process_iter(["cmdline"])
        if "orphan-marker" in (p.info["cmdline"] or [])
    ]
    assert not left


UNUSED = """\
import torch

class Net(torch.nn.Module):
    def forward(self, x): return x + 1
    def encode(self, x): return x * 2

net = torch.compile(Net())
net(torch.ones(2))
net.encode(torch.ones(2))  # <- NC802
torch.compile(torch.nn.Linear(2, 2))  # <- NC801
model = torch.nn.Conv1d(1, 1, 1)
fast = torch.compile(model)
model(torch.ones(1, 1, 2))  # <- NC803
inner = torch.compile(lambda x: x + 1)  # inlined, which is no finding
torch.compile(lambda x: inner(x) * 2)(torch.ones(2))
"""


def test_unused_compiled_code_is_a_finding(tmp_path: Path) -> None:
    run, _ = check(tmp_path, UNUSED, "--effort", "quick")
    expected = {
        (line.partition("# <- ")[2], number)
        for number, line in enumerate(UNUSED.splitlines(), 1)
        if "# <- " in line
    }
    found = {(f["code"], f["line"]) for f in run["findings"] if f["kind"] == "no_op"}
    assert found == expected


def test_error_outside_of_any_compilation_ends_the_script_as_without_check(
    tmp_path: Path,
) -> None:
    source = """\
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2)), backend="eager")
    # DDP's optimizer refuses buckets below 1 MB.
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    model(torch.ones(1, 2))
    """
    run, done = check(tmp_path, source, "--effort", "quick")
    assert done.returncode == 2 and "AssertionError" in run["error"]


@pytest.mark.slow
def test_variable_that_switches_compilation_off_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    source = "import torch\nf = torch.compile(lambda x: x + 1)\nf(torch.ones(2))\n"
    run, _ = check(tmp_path, source, "--effort", "quick", run=commands.torchproof)
    [found] = run["findings"]
    assert found["code"] == "NC804" and "TORCH_COMPILE_DISABLE=1" in found["message"]


def test_module_that_is_only_looked_for_is_still_noticed_when_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers does with torch: is it there, and only later, import it."""
    (tmp_path / "looked_for.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before, noticed = list(sys.meta_path), []
    script.when_imported("looked_for", lambda: noticed.append("looked_for"))
    assert importlib.util.find_spec("looked_for") and noticed == []
    module = importlib.import_module("looked_for")
    assert module.value == 1 and noticed == ["looked_for"]
    assert sys.meta_path == before
    del sys.modules["looked_for"]


def test_child_leaves_it_to_the_script_to_import_torch() -> None:
    """What is imported before a script's own `import torch` is not observed."""
    code = "import sys, torchproof.observe.child; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
