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

import psutil
import pytest
from commands import PROGRAM, Done, torchproof
from waiting import wait_for_ends

from torchproof.doctor import (
    cpp_compiler,
    examination,
    package_checks,
    system_checks,
    torch_checks,
)
from torchproof.doctor.package_checks import Requirement
from torchproof.doctor.table import tried
from torchproof.records import MachineCheck
from torchproof.report import machine

GROUPS = ["versions", "torch", "C++ compiler", "GPU", "caches", "permissions"]
GROUPS += ["environment", "packages"]
Checks = Iterable[MachineCheck]
Patch = pytest.MonkeyPatch


def by_name(checks: Checks) -> dict[str, MachineCheck]:
    return {check.name: check for check in checks}


def reported(done: Done) -> dict[str, dict[str, Any]]:
    """The checks of a run, by name."""
    assert "Traceback" not in done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


# -- faults of the machine: each function makes one, and gives the checks --------------


def compiler(patch: Patch, folder: Path, path: str) -> Checks:
    patch.setenv("CXX", path)
    return cpp_compiler.checks()


def wrapped_compiler(patch: Patch, folder: Path, script: str) -> Checks:
    """g++ without what the script takes from it."""
    wrapper = folder / "c++"
    wrapper.write_text(f'#!/bin/bash\n{script}\nexec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(0o755)
    return compiler(patch, folder, str(wrapper))


def cache(
    patch: Patch, folder: Path, prepare: Callable[[Path], object], free: int = 2**40
) -> Checks:
    path = folder / "cache"
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path))
    patch.chdir(folder)
    prepare(path)
    usage = shutil._ntuple_diskusage(2**41, 2**41 - free, free)
    patch.setattr(shutil, "disk_usage", lambda path: usage)
    return system_checks.cache_checks()


def folder_of_mode(mode: int) -> Callable[[Path], object]:
    return lambda path: (path.mkdir(), path.chmod(mode))


def limit(patch: Patch, folder: Path, kind: int, soft: int) -> Checks:
    hard = resource.getrlimit(kind)[1]
    patch.setattr(system_checks, "_CGROUP", folder)
    patch.setattr(resource, "getrlimit", lambda each: (soft, hard))
    return system_checks.checks(os.getpid())


def container(patch: Patch, folder: Path, **limits: int) -> Checks:
    patch.setattr(system_checks, "_CGROUP", folder)
    for name, number in limits.items():
        (folder / name.replace("_", ".")).write_text(f"{number}\n")
    return system_checks.checks(os.getpid())


def variable(patch: Patch, folder: Path, name: str, value: str) -> Checks:
    patch.setenv(name, value)
    return system_checks.variables()


def package(patch: Patch, folder: Path, *requirement: str, error: str = "") -> Checks:
    return [package_checks.check(Requirement(*requirement), error)]


GPU: dict[str, Any] = {"name": "H200", "capability": (9, 0), "error": ""}
GPU |= {"total": 2**37, "free": 2**36}


def gpu(patch: Patch, folder: Path, **facts: Any) -> Checks:
    return tried("device", torch_checks.gpu, GPU | facts, number=0)


def no_triton(patch: Patch, folder: Path) -> Checks:
    patch.setitem(sys.modules, "triton", None)
    return tried("triton", torch_checks.triton)


def c_compiler(patch: Patch, folder: Path, cc: str) -> Checks:
    patch.setenv("CC", cc)
    return tried("C compiler", torch_checks.c_compiler)


def no_gpu(patch: Patch, folder: Path, driver: str, build: str | None) -> Checks:
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    patch.setattr(torch_checks, "_driver", lambda: driver)
    return tried("CUDA", torch_checks.no_gpu, build, None, "")


def dynamo(patch: Patch, folder: Path, *result: Any) -> Checks:
    """What it finds out: the number of graphs, and whether the answer is right."""
    return tried("torch.compile", torch_checks.traced, *result)


def killed(patch: Patch, folder: Path) -> Checks:
    with (folder / "output").open("wb+") as output:
        return [*examination._failed(["CUDA"], "was killed", output)]


def shared_memory(patch: Patch, folder: Path, name: str) -> Checks:
    return tried("/dev/shm", system_checks.shared_memory, folder / name)


def child(patch: Patch, folder: Path, pid: int) -> Checks:
    return tried("child processes", system_checks.readable, pid)


NO_INCLUDES = 'for a; do shift; [[ $a == -I* ]] || set -- "$@" "$a"; done'
NO_OPENMP = 'case "$*" in *-fopenmp*) echo "error: no -fopenmp" >&2; exit 1;; esac'
EMPTY_LIBRARY = 'case "$*" in *plain.cpp*) touch "${@: -1}"; exit 0;; esac'


def in_the_way(path: Path) -> None:
    (path.parent / ".torchproof").touch()


def fault(make: Callable[..., Checks], *values: Any, **named: Any) -> Any:
    return lambda patch, folder: make(patch, folder, *values, **named)


NOFILE, NPROC = resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC
# The fault, the check that finds it, and its status; doctor then exits with 1, unless
# the status is ok or the check is optional.
FAULTS: dict[str, tuple[Any, str, str]] = {
    "compiler fails": (fault(compiler, "/bin/false"), "compiler", "missing"),
    "no such compiler": (fault(compiler, "no-such"), "compiler", "missing"),
    # torch takes CXX as the name of one program
    "compiler with flags": (fault(compiler, "g++ -O2"), "compiler", "missing"),
    "no headers": (fault(wrapped_compiler, NO_INCLUDES), "Python headers", "missing"),
    "no OpenMP": (fault(wrapped_compiler, NO_OPENMP), "OpenMP", "missing"),
    "not loaded": (fault(wrapped_compiler, EMPTY_LIBRARY), "shared library", "missing"),
    "cache is a file": (fault(cache, Path.touch), "inductor", "missing"),
    "others write": (fault(cache, folder_of_mode(0o777)), "inductor", "degraded"),
    "sticky cache": (fault(cache, folder_of_mode(0o1777)), "inductor", "ok"),
    "no cache yet": (fault(cache, lambda path: None), "inductor", "ok"),
    "full disk": (fault(cache, Path.mkdir, free=2**20), "inductor", "degraded"),
    "runs cannot be saved": (fault(cache, in_the_way), "runs", "missing"),
    "few files": (fault(limit, NOFILE, 200), "open files", "degraded"),
    "enough files": (fault(limit, NOFILE, 1024), "open files", "ok"),
    "few processes": (fault(limit, NPROC, 200), "processes", "degraded"),
    "few processes in a container": (
        fault(container, pids_max=300, pids_current=290),
        "processes",
        "degraded",
    ),
    "little memory in a container": (
        fault(container, memory_max=2**31, memory_current=2**30),
        "memory",
        "degraded",
    ),
    "no shared memory": (fault(shared_memory, "none"), "", "missing, optional"),
    "shared memory": (fault(shared_memory, "."), "", "ok"),
    "unreadable child": (fault(child, 2**22 + 1), "child processes", "degraded"),
    "switched off": (
        fault(variable, "TORCHPROOF_DISABLE", "1"),
        "TORCHPROOF_DISABLE",
        "degraded",
    ),
    "harmless variable": (fault(variable, "TORCH_LOGS", "+dynamo"), "variables", "ok"),
    "foreign variable": (fault(variable, "PASSWORD", "hunter2"), "variables", "ok"),
    "old package": (fault(package, "psutil", "999.0", ""), "psutil", "degraded"),
    "new package": (fault(package, "psutil", "1.0", ""), "psutil", "ok"),
    "no package": (fault(package, "no-such", "", ""), "no-such", "missing"),
    "no extra": (fault(package, "none", "", "extra"), "none", "missing, optional"),
    "broken package": (
        fault(package, "psutil", "1.0", "", error="ImportError: no native module"),
        "psutil",
        "missing",
    ),
    "GPU": (fault(gpu), "cuda:0", "ok"),
    "full GPU": (fault(gpu, free=2**20), "cuda:0", "degraded"),
    "old GPU": (fault(gpu, capability=(6, 1)), "cuda:0", "degraded"),
    "GPU without kernels": (fault(gpu, error="no image"), "cuda:0", "missing"),
    "no triton": (fault(no_triton), "triton", "missing"),
    "no C compiler": (fault(c_compiler, "no-such-cc"), "C compiler", "missing"),
    "C compiler": (fault(c_compiler, "gcc"), "C compiler", "ok"),
    "no GPU": (fault(no_gpu, "", None), "CUDA", "missing, optional"),
    "no GPU, CUDA build": (fault(no_gpu, "", "13.0"), "CUDA", "missing, optional"),
    "CPU build beside a GPU": (fault(no_gpu, "570.1", None), "CUDA", "degraded"),
    "unusable GPU": (fault(no_gpu, "570.1", "13.0"), "CUDA", "missing"),
    "GPU kills": (fault(killed), "CUDA", "missing"),
    "Dynamo works": (fault(dynamo, 1, True), "torch.compile", "ok"),
    "Dynamo is off": (fault(dynamo, 0, True), "torch.compile", "degraded"),
    "Dynamo is wrong": (fault(dynamo, 1, False), "torch.compile", "missing"),
    "Dynamo raises": (fault(dynamo), "torch.compile", "missing"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_by_its_check(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, wanted, expected = FAULTS[name]
    with monkeypatch.context() as patch:
        checks = list(make(patch, tmp_path))
    check = by_name(checks)[wanted] if wanted else checks[0]
    status, _, optional = expected.partition(", ")
    assert check.status == status, check
    is_fine = status == "ok" or bool(optional)
    assert machine.document([check])["healthy"] is is_fine
    assert status == "ok" or (check.means and (check.action or check.optional))
    assert "hunter2" not in str(checks)


def test_checks_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path))
    monkeypatch.chdir(tmp_path)
    list(system_checks.cache_checks())
    assert not path.exists()
    path.mkdir()
    (path / "fxgraph").write_bytes(bytes(2048))
    assert "2.00 KiB" in by_name(system_checks.cache_checks())["inductor"].value
    assert [each.name for each in path.iterdir()] == ["fxgraph"]


def test_packages_of_extras_are_imported_only_if_asked() -> None:
    extras = {each.name for each in package_checks.requirements() or () if each.extra}
    assert extras & {*package_checks.installed(extras=True)}
    assert not extras & {*package_checks.installed(extras=False)}


def test_requirements_are_parsed_and_versions_are_numbers() -> None:
    assert Requirement.parse("numpy") == ("numpy", "", "")
    assert Requirement.parse("torch<2.16,>=2.11") == ("torch", "2.11", "")
    ray = Requirement.parse("ray[client]>=2.51; extra == 'ray'")
    assert ray == ("ray", "2.51", "ray")
    assert package_checks._numbers("1.10.0rc1") > package_checks._numbers("1.9")


# -- the verb --------------------------------------------------------------------------


def test_doctor_on_this_machine(tmp_path: Path) -> None:
    done = torchproof("doctor", "--format", "json", cwd=tmp_path)
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
# A torch that cannot be imported, and a part of the value of its check.
TORCHES = {
    'raise ImportError("cannot open shared object file")': "cannot open shared object",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "killed by SIGSEGV",
    "import time; time.sleep(600)": "did not answer within",
}


@pytest.mark.parametrize("source", TORCHES)
def test_torch_that_cannot_be_imported(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", torch_package(tmp_path / "found", source))
    monkeypatch.setenv("CXX", "/bin/false")
    if "sleep" in source:
        monkeypatch.setattr(examination, "_ROW_S", 0.5)
    checks = by_name(examination.examine())
    assert checks["torch"].status == "missing"
    assert TORCHES[source] in checks["torch"].value
    assert "CUDA" not in checks


def test_unknown_torch_in_a_real_process(tmp_path: Path) -> None:
    done = torchproof(
        *("doctor", "--format", "json", "-q"),
        cwd=tmp_path,
        variables={
            "PYTHONPATH": torch_package(tmp_path / "found", STUB),
            "CXX": "/bin/false",
        },
    )
    checks = reported(done)
    assert (done.returncode, done.stderr) == (1, "")
    for name in ("torch", "hooks: breaks"):
        assert (
            checks[name]["status"] == "degraded" and "2.99.0" in checks[name]["value"]
        )
    assert "CUDA" in checks and checks["compiler"]["status"] == "missing"


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
    assert children
    wait_for_ends((child.pid for child in children), 5.0)


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


def test_text_explains_what_is_wrong(snapshot: Callable[[str, str], None]) -> None:
    good = MachineCheck("a", "one", "ok", "1.0", "works")
    extra = MachineCheck("a", "two", "missing", "", "nothing", "install", optional=True)
    bad = MachineCheck("b", "three", "degraded", "x" * 200, "slow", "change it")
    healthy = machine.render([good, extra], "text", verbose=False)
    everything = machine.render([good, extra, bad], "text", verbose=True)
    snapshot("doctor.txt", f"{healthy}\n{'-' * 80}\n{everything}")
