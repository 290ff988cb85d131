"""`torchproof doctor`: a table of faults, each with the check that fails."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import forked_commands
import psutil
import pytest
from commands import PROGRAM, Done, torchproof

from torchproof.doctor import (
    cache_checks,
    cpp_compiler,
    examination,
    package_checks,
    system_checks,
    torch_checks,
)
from torchproof.doctor.package_checks import Requirement
from torchproof.records import MachineCheck
from torchproof.report import machine

GROUPS = ["versions", "torch", "C++ compiler", "GPU", "caches", "permissions"]
GROUPS += ["environment", "packages"]
Inject = Callable[[pytest.MonkeyPatch, Path], Iterable[MachineCheck]]


def by_name(checks: Iterable[MachineCheck]) -> dict[str, MachineCheck]:
    return {check.name: check for check in checks}


def reported(done: Done) -> dict[str, dict[str, Any]]:
    """The checks of a run, by name."""
    assert "Traceback" not in done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


# -- faults of the machine -------------------------------------------------------------


def compiler(path: str) -> Inject:
    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        patch.setenv("CXX", path)
        return cpp_compiler.checks()

    return inject


def wrapped_compiler(script: str) -> Inject:
    """g++ without what the script takes from it."""

    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        wrapper = folder / "c++"
        wrapper.write_text(f'#!/bin/bash\n{script}\nexec {shutil.which("g++")} "$@"\n')
        wrapper.chmod(0o755)
        patch.setenv("CXX", str(wrapper))
        return cpp_compiler.checks()

    return inject


def cache(prepare: Callable[[Path], object], free: int = 2**40) -> Inject:
    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        path = folder / "cache"
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path))
        patch.chdir(folder)
        prepare(path)
        usage = shutil._ntuple_diskusage(2**41, 2**41 - free, free)
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        return cache_checks.checks()

    return inject


def folder_of_mode(mode: int) -> Callable[[Path], object]:
    def prepare(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)

    return prepare


def limit(kind: int, soft: int) -> Inject:
    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        hard = resource.getrlimit(kind)[1]
        patch.setattr(system_checks, "_CGROUP", folder)
        patch.setattr(resource, "getrlimit", lambda each: (soft, hard))
        return system_checks.checks(os.getpid())

    return inject


def container(**limits: int) -> Inject:
    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        patch.setattr(system_checks, "_CGROUP", folder)
        for name, number in limits.items():
            (folder / name.replace("_", ".")).write_text(f"{number}\n")
        return system_checks.checks(os.getpid())

    return inject


def variable(name: str, value: str) -> Inject:
    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        patch.setenv(name, value)
        return system_checks._variables()

    return inject


def package(*requirement: str, error: str = "") -> Inject:
    return lambda patch, folder: [
        package_checks.check(Requirement(*requirement), error)
    ]


TORCH = {"version": "2.13.0", "seconds": 1.0, "cuda_build": "13.0", "rocm_build": None}
GPU: dict[str, Any] = {"name": "H200", "capability": [9, 0], "error": ""}
GPU |= {"total_bytes": 2**37, "free_bytes": 2**36}


def gpus(*devices: dict[str, Any], cc: str = "gcc", **facts: Any) -> Inject:
    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        patch.setenv("CC", cc)
        cuda = {"devices": devices, "warnings": [], "triton": {"version": "3"}, **facts}
        return torch_checks.gpu_checks({"torch": TORCH, "cuda": cuda})

    return inject


def no_gpu(driver: str, build: str | None) -> Inject:
    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setattr(torch_checks, "_driver", lambda: driver)
        torch = {**TORCH, "cuda_build": build}
        cuda = {"devices": [], "warnings": [], "triton": {}}
        return torch_checks.gpu_checks({"torch": torch, "cuda": cuda})

    return inject


def stages(**facts: Any) -> Inject:
    """What the process with torch has sent."""
    hooks = {"features": 1, "names": 1, "lacking": []}
    facts = {"torch": TORCH, "hooks": hooks, **facts}

    def inject(patch: pytest.MonkeyPatch, folder: Path) -> Iterable[MachineCheck]:
        yield from torch_checks.checks(facts)
        yield from torch_checks.gpu_checks(facts)

    return inject


KILLED = {"stage": "cuda", "how": "was killed by SIGKILL", "said": "CUDA error"}
WORKS = {"graphs": 1, "right": True}
RAISES = {"error": "RuntimeError: Python 3.15 is not supported"}
# The fault, the check that tells it, its status, whether doctor then exits with 1.
FAULTS: dict[str, tuple[Inject, str, str, bool]] = {
    "compiler fails": (compiler("/bin/false"), "compiler", "missing", True),
    "no such compiler": (compiler("no-such-compiler"), "compiler", "missing", True),
    # torch takes CXX as the name of one program
    "compiler with flags": (compiler("g++ -O2"), "compiler", "missing", True),
    "no Python headers": (
        wrapped_compiler('for a; do shift; [[ $a == -I* ]] || set -- "$@" "$a"; done'),
        "Python headers",
        "missing",
        True,
    ),
    "no OpenMP": (
        wrapped_compiler(
            'case "$*" in *-fopenmp*) echo "error: no -fopenmp" >&2; exit 1;; esac'
        ),
        "OpenMP",
        "missing",
        True,
    ),
    "library does not load": (
        wrapped_compiler('case "$*" in *plain.cpp*) touch "${@: -1}"; exit 0;; esac'),
        "shared library",
        "missing",
        True,
    ),
    "cache is a file": (cache(Path.touch), "inductor", "missing", True),
    "others write the cache": (
        cache(folder_of_mode(0o777)),
        "inductor",
        "degraded",
        True,
    ),
    "sticky cache": (cache(folder_of_mode(0o1777)), "inductor", "ok", False),
    "no cache yet": (cache(lambda path: None), "inductor", "ok", False),
    "full disk": (cache(Path.mkdir, free=2**20), "inductor", "degraded", True),
    "runs cannot be saved": (
        cache(lambda path: (path.parent / ".torchproof").touch()),
        "runs",
        "missing",
        True,
    ),
    "few files": (limit(resource.RLIMIT_NOFILE, 200), "open files", "degraded", True),
    "enough files": (limit(resource.RLIMIT_NOFILE, 1024), "open files", "ok", False),
    "few processes": (limit(resource.RLIMIT_NPROC, 200), "processes", "degraded", True),
    "few processes in a container": (
        container(pids_max=300, pids_current=290),
        "processes",
        "degraded",
        True,
    ),
    "little memory in a container": (
        container(memory_max=2**31, memory_current=2**30),
        "memory",
        "degraded",
        True,
    ),
    "no shared memory": (
        lambda patch, folder: [system_checks._shared_memory(folder / "none")],
        "",
        "missing",
        False,
    ),
    "shared memory": (
        lambda patch, folder: [system_checks._shared_memory(folder)],
        "",
        "ok",
        False,
    ),
    "unreadable child": (
        lambda patch, folder: [system_checks._child(2**22 + 1)],
        "child processes",
        "degraded",
        True,
    ),
    "switched off": (
        variable("TORCHPROOF_DISABLE", "1"),
        "TORCHPROOF_DISABLE",
        "degraded",
        True,
    ),
    "harmless variable": (variable("TORCH_LOGS", "+dynamo"), "variables", "ok", False),
    "foreign variable": (variable("PASSWORD", "hunter2"), "variables", "ok", False),
    "old package": (package("psutil", "999.0", ""), "psutil", "degraded", True),
    "new package": (package("psutil", "1.0", ""), "psutil", "ok", False),
    "no package": (package("no-such", "", ""), "no-such", "missing", True),
    "no extra": (package("no-such", "", "extra"), "no-such", "missing", False),
    "broken package": (
        package("psutil", "1.0", "", error="ImportError: no native module"),
        "psutil",
        "missing",
        True,
    ),
    "GPU": (gpus(GPU), "cuda:0", "ok", False),
    "full GPU": (gpus({**GPU, "free_bytes": 2**20}), "cuda:0", "degraded", True),
    "old GPU": (gpus({**GPU, "capability": [6, 1]}), "cuda:0", "degraded", True),
    "GPU without kernels": (
        gpus({**GPU, "error": "no kernel image", "free_bytes": None}),
        "cuda:0",
        "missing",
        True,
    ),
    "no triton": (gpus(GPU, triton={"error": "no"}), "triton", "missing", True),
    "no C compiler": (gpus(GPU, cc="no-such-cc"), "C compiler", "missing", True),
    "no GPU": (no_gpu("", None), "CUDA", "missing", False),
    "no GPU, CUDA build": (no_gpu("", "13.0"), "CUDA", "missing", False),
    "CPU build beside a GPU": (no_gpu("570.1", None), "CUDA", "degraded", True),
    "unusable GPU": (no_gpu("570.1", "13.0"), "CUDA", "missing", True),
    "GPU kills the process": (
        stages(dynamo=WORKS, ended=KILLED),
        "CUDA",
        "missing",
        True,
    ),
    "Dynamo works": (stages(dynamo=WORKS), "torch.compile", "ok", False),
    "Dynamo is off": (
        stages(dynamo={"graphs": 0, "right": True}),
        "torch.compile",
        "degraded",
        True,
    ),
    "Dynamo is wrong": (
        stages(dynamo={"graphs": 1, "right": False}),
        "torch.compile",
        "missing",
        True,
    ),
    "Dynamo raises": (stages(dynamo=RAISES), "torch.compile", "missing", True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_told_by_its_check(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject, name, status, exits_1 = FAULTS[fault]
    with monkeypatch.context() as patch:
        checks = list(inject(patch, tmp_path))
    check = by_name(checks)[name] if name else checks[0]
    assert check.status == status, check
    assert machine.document([check])["healthy"] is not exits_1
    assert status == "ok" or (check.means and (check.action or check.optional))
    assert "hunter2" not in str(checks)


def test_checks_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path))
    monkeypatch.chdir(tmp_path)
    list(cache_checks.checks())
    assert not path.exists()
    path.mkdir()
    (path / "fxgraph").write_bytes(bytes(2048))
    assert "2.00 KiB" in by_name(cache_checks.checks())["inductor"].value
    assert [each.name for each in path.iterdir()] == ["fxgraph"]


def test_requirements_are_parsed_and_versions_are_numbers() -> None:
    assert Requirement.parse("numpy") == ("numpy", "", "")
    assert Requirement.parse("torch<2.16,>=2.11") == ("torch", "2.11", "")
    ray = Requirement.parse("ray[client]>=2.51; extra == 'ray'")
    assert ray == ("ray", "2.51", "ray")
    assert package_checks._numbers("1.10.0rc1") > package_checks._numbers("1.9")


# -- the verb --------------------------------------------------------------------------


def test_doctor_on_this_machine(tmp_path: Path) -> None:
    done = forked_commands.torchproof("doctor", "--format", "json", cwd=tmp_path)
    document, checks = json.loads(done.stdout), reported(done)
    for name in ("torch", "hooks", "torch.compile", "compiler", "OpenMP", "fork"):
        assert checks[name]["status"] == "ok", checks[name]
    assert list(dict.fromkeys(c["group"] for c in document["checks"])) == GROUPS
    broken = [c for c in document["checks"] if c["status"] != "ok"]
    assert all(c["means"] for c in broken)
    assert document["healthy"] is not any(not c["optional"] for c in broken)
    assert done.returncode == (0 if document["healthy"] else 1)
    assert sum(document["counts"].values()) == len(document["checks"])


def torch_package(folder: Path, text: str, version: str = "2.99.0") -> str:
    """A torch of one file, to be found first."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(text)
    (folder / f"torch-{version}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    (folder / f"torch-{version}.dist-info" / "METADATA").write_text(metadata)
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


STUB = """
from types import SimpleNamespace
__version__ = "2.99.0"
version = SimpleNamespace(cuda=None, hip=None)
"""
# A torch, and the checks that tell its fault with their status and a part of the value.
TORCHES = {
    "raises": (
        'raise ImportError("libtorch_cpu.so: cannot open shared object file")',
        [("torch", "missing", "cannot open shared object file")],
    ),
    "crashes": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        [("torch", "missing", "killed by SIGSEGV")],
    ),
    "is unknown": (
        STUB,
        [
            ("torch", "degraded", "2.99.0"),
            ("hooks: breaks", "degraded", "torch 2.99.0"),
        ],
    ),
}


@pytest.mark.parametrize("fault", TORCHES)
def test_torch_that_does_not_work(fault: str, tmp_path: Path) -> None:
    source, expected = TORCHES[fault]
    done = torchproof(
        *("doctor", "--format", "json", "-q"),
        cwd=tmp_path,
        variables={
            "PYTHONPATH": torch_package(tmp_path / "found", source),
            "CXX": "/bin/false",
        },
    )
    checks = reported(done)
    assert (done.returncode, done.stderr) == (1, "")
    for name, status, value in expected:
        assert checks[name]["status"] == status and value in checks[name]["value"]
    assert ("CUDA" in checks) is (fault == "is unknown")
    assert checks["compiler"]["status"] == "missing"


def test_torch_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = torch_package(tmp_path / "found", "import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(examination, "_STAGE_S", 1.0)
    check = by_name(examination.examine())["torch"]
    assert check.status == "missing" and "did not answer within 1 s" in check.value


@pytest.mark.slow
def test_interrupt_ends_all_processes(tmp_path: Path) -> None:
    path = torch_package(tmp_path / "found", "import time; time.sleep(600)")
    with subprocess.Popen(
        [*PROGRAM, "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as doctor:
        while "trying torch" not in doctor.stderr.readline():
            assert doctor.poll() is None
        children = psutil.Process(doctor.pid).children(recursive=True)
        doctor.send_signal(signal.SIGINT)
        assert (doctor.wait(60), doctor.stdout.read()) == (130, "")
    assert children and not any(child.is_running() for child in children)


@pytest.mark.slow
def test_several_faults_at_once(tmp_path: Path) -> None:
    """A broken package, compilation switched off, few files, as a user meets them."""
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "libcst.py").write_text('raise ImportError("is broken")')
    path = os.pathsep.join([str(tmp_path / "found"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 64; {sys.executable} -m torchproof doctor -q"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TORCH_COMPILE_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and not done.stderr
    (summary,) = (
        text
        for text in " ".join(done.stdout.split()).split(". ")
        if text.startswith("To look at first: ")
    )
    for name in ("torch.compile", "open files", "TORCH_COMPILE_DISABLE", "libcst"):
        assert name in summary


# -- what is printed -------------------------------------------------------------------


def test_bug_report_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "annabel")
    monkeypatch.setenv("HOME", "/home/annabel")
    path = "/home/annabel/models/cache"
    check = MachineCheck("caches", "inductor", "missing", f"{path}: full", path, path)
    text, plain, markdown = (
        machine.render([check], format, verbose=True)
        for format in ("text", "json", "md")
    )
    assert path in text and path in plain
    assert "annabel" not in markdown and "<home>/models/cache: full" in markdown


def test_text_explains_what_is_wrong() -> None:
    good = MachineCheck("a", "one", "ok", "1.0", "works")
    extra = MachineCheck("a", "two", "missing", "", "nothing", "install", optional=True)
    bad = MachineCheck("b", "three", "degraded", "x" * 200, "slow", "change it")
    healthy = machine.render([good, extra], "text", verbose=False)
    assert "works here" in healthy and "means: nothing (optional)" in healthy
    assert "means: works" not in healthy
    text = machine.render([good, extra, bad], "text", verbose=True)
    assert "To look at first: three" in text and "means: works" in text
