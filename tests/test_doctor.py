"""`torchproof doctor`: each thing is broken for real, and has a twin that works."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
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


def by_name(checks: Any) -> dict[str, MachineCheck]:
    return {check.name: check for check in checks}


def told(done: Done) -> dict[str, dict[str, Any]]:
    """The checks of a run, by name."""
    assert "Traceback" not in done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


# -- the verb --------------------------------------------------------------------------


def test_a_machine_that_works(tmp_path: Path) -> None:
    done = forked_commands.torchproof("doctor", "--format", "json", cwd=tmp_path)
    document, checks = json.loads(done.stdout), told(done)
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
BROKEN = {
    "raises": 'raise ImportError("libtorch_cpu.so: cannot open shared object file")',
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
}


@pytest.mark.parametrize(
    ("how", "said"),
    [("raises", "cannot open shared object file"), ("crashes", "killed by SIGSEGV")],
)
def test_a_torch_that_cannot_be_imported(how: str, said: str, tmp_path: Path) -> None:
    path = torch_package(tmp_path / "found", BROKEN[how])
    done = torchproof(
        *("doctor", "--format", "json", "-q"),
        cwd=tmp_path,
        variables={"PYTHONPATH": path, "CXX": "/bin/false"},
    )
    checks = told(done)
    assert (done.returncode, done.stderr) == (1, "")
    assert checks["torch"]["status"] == "missing" and said in checks["torch"]["value"]
    assert "hooks" not in checks and "CUDA" not in checks
    assert checks["compiler"]["status"] == "missing"


def test_an_unknown_torch_without_the_hooks(tmp_path: Path) -> None:
    path = torch_package(tmp_path / "found", STUB)
    done = torchproof(
        "doctor", cwd=tmp_path, variables={"PYTHONPATH": path, "CXX": "/bin/false"}
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert any(row.startswith("  degraded  torch: 2.99.0") for row in lines)
    assert any(
        row.startswith("  degraded  hooks: breaks: torch 2.99.0") for row in lines
    )
    assert "trying" in done.stderr  # the progress


def test_a_torch_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = torch_package(tmp_path / "found", "import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(examination, "_STAGE_S", 1.0)
    check = by_name(examination.examine())["torch"]
    assert check.status == "missing" and "did not answer within 1 s" in check.value


@pytest.mark.slow
def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
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
@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, set()),
        ({"CXX": "/bin/false"}, {"compiler"}),
        # Inductor makes its folder when it is imported.
        (
            {"TORCHINDUCTOR_CACHE_DIR": "file/cache"},
            {"inductor", "hooks", "torch.compile"},
        ),
        ({"TORCH_COMPILE_DISABLE": "1"}, {"torch.compile"}),
    ],
    ids=["nothing", "compiler", "cache", "switched off"],
)
def test_one_broken_thing_is_the_one_that_is_told(
    variables: dict[str, str], names: set[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    plain = told(torchproof("doctor", "--format", "json", cwd=tmp_path))
    done = torchproof("doctor", "--format", "json", cwd=tmp_path, variables=variables)
    changed = {
        name
        for name, check in told(done).items()
        if check["status"] != plain.get(name, {"status": "ok"})["status"]
    }
    assert changed - set(variables) == names
    assert not names or done.returncode == 1


@pytest.mark.slow
def test_few_open_files_as_a_user_meets_them(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 64; {sys.executable} -m torchproof doctor -q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and not done.stderr
    assert "degraded  open files: 64" in done.stdout and "ulimit -n" in done.stdout


# -- the compiler ----------------------------------------------------------------------


WRAPPERS = {  # each gives what only part of a compiler would
    "Python headers": 'for a; do shift; [[ $a == -I* ]] || set -- "$@" "$a"; done',
    "OpenMP": 'case "$*" in *-fopenmp*) echo "error: no -fopenmp" >&2; exit 1;; esac',
    "shared library": 'case "$*" in *plain.cpp*) touch "${@: -1}"; exit 0;; esac',
}


def compiler_checks(compiler: str, monkeypatch: Any) -> dict[str, MachineCheck]:
    monkeypatch.setenv("CXX", compiler)
    return by_name(cpp_compiler.checks())


@pytest.mark.parametrize("part", WRAPPERS)
def test_a_compiler_that_lacks_a_part(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "c++"
    wrapper.write_text(
        f'#!/bin/bash\n{WRAPPERS[part]}\nexec {shutil.which("g++")} "$@"\n'
    )
    wrapper.chmod(0o755)
    checks = compiler_checks(str(wrapper), monkeypatch)
    assert [name for name in checks if checks[name].status != "ok"] == [part]
    assert checks[part].value and checks[part].means and checks[part].action


@pytest.mark.parametrize("compiler", ["/bin/false", "no-such-compiler", "", "g++ -O2"])
def test_no_compiler(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With arguments too: torch takes CXX as the name of one program."""
    checks = compiler_checks(compiler, monkeypatch)
    assert [(c.name, c.status) for c in checks.values()] == [("compiler", "missing")]
    assert checks["compiler"].value.startswith(f"{compiler}: ")


# -- folders ---------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def test_a_cache_folder_that_works(cache: Path) -> None:
    assert by_name(cache_checks.checks())["inductor"].status == "ok"
    assert not cache.exists()  # nothing was left behind
    cache.mkdir(mode=0o755)
    (cache / "fxgraph").write_bytes(bytes(2048))
    check = by_name(cache_checks.checks())["inductor"]
    assert check.status == "ok" and "2.00 KiB" in check.value
    assert [path.name for path in cache.iterdir()] == ["fxgraph"]


def test_a_cache_folder_that_cannot_be_written(cache: Path) -> None:
    cache.touch()  # a file: not even root can write below it
    check = by_name(cache_checks.checks())["inductor"]
    assert check.status == "missing" and "TORCHINDUCTOR_CACHE_DIR" in check.action


@pytest.mark.parametrize(("mode", "status"), [(0o777, "degraded"), (0o1777, "ok")])
def test_a_cache_folder_that_others_write(cache: Path, mode: int, status: str) -> None:
    cache.mkdir()
    cache.chmod(mode)
    assert by_name(cache_checks.checks())["inductor"].status == status


def test_a_disk_that_is_nearly_full(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(2**40, 2**40 - 2**20, 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    check = by_name(cache_checks.checks())["inductor"]
    assert check.status == "degraded" and "1.00 MiB free" in check.value


def test_a_folder_without_room_for_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert by_name(cache_checks.checks())["runs"].status == "ok"
    (tmp_path / ".torchproof").touch()
    assert by_name(cache_checks.checks())["runs"].status == "missing"


# -- limits ----------------------------------------------------------------------------


@pytest.fixture
def limits() -> Iterator[None]:
    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    before = {kind: resource.getrlimit(kind) for kind in kinds}
    yield
    for kind, limit in before.items():
        resource.setrlimit(kind, limit)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("kind", "name", "enough"),
    [
        (resource.RLIMIT_NOFILE, "open files", 1024),
        (resource.RLIMIT_NPROC, "processes", 4096),
    ],
    ids=["files", "processes"],
)
def test_a_low_limit(
    kind: int, name: str, enough: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system_checks, "_CGROUP", tmp_path)
    hard = resource.getrlimit(kind)[1]
    for soft, status in ((enough, "ok"), (200, "degraded")):
        resource.setrlimit(kind, (soft, hard))
        check = by_name(system_checks.checks(os.getpid()))[name]
        assert check.status == status and str(soft) in check.value


def test_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_checks, "_CGROUP", tmp_path)
    limits = {"pids.max": 300, "pids.current": 290}
    limits |= {"memory.max": 2**31, "memory.current": 2**30}
    for name, number in limits.items():
        (tmp_path / name).write_text(f"{number}\n")
    checks = by_name(system_checks.checks(os.getpid()))
    assert checks["processes"].status == "degraded"
    assert checks["processes"].value == "10"
    assert checks["memory"].status == "degraded"
    for name in ("pids.max", "memory.max"):
        (tmp_path / name).write_text("max\n")
    checks = by_name(system_checks.checks(os.getpid()))
    assert checks["processes"].value != "10"
    assert not checks["memory"].value.startswith("1.00 GiB")


def test_shared_memory(tmp_path: Path) -> None:
    assert system_checks._shared_memory(tmp_path).status == "ok"
    check = system_checks._shared_memory(tmp_path / "none")
    assert check.status == "missing" and check.optional


def test_processes_that_cannot_be_looked_at() -> None:
    assert system_checks._child(os.getpid()).status == "ok"
    assert system_checks._child(2**22 + 1).status == "degraded"


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    monkeypatch.setenv("TORCH_LOGS", "graph_breaks")
    monkeypatch.setenv("TORCHPROOF_DISABLE", "0")
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    checks = by_name(system_checks._variables())
    assert "TORCH_LOGS=graph_breaks" in checks["variables"].value
    assert "hunter2" not in checks["variables"].value
    assert set(checks) == {"variables"}
    monkeypatch.setenv("TORCHPROOF_DISABLE", "1")
    checks = by_name(system_checks._variables())
    assert checks["TORCHPROOF_DISABLE"].status == "degraded"


# -- packages --------------------------------------------------------------------------


def test_requirements() -> None:
    assert Requirement.parse("numpy") == ("numpy", "", "")
    assert Requirement.parse("torch<2.16,>=2.11") == ("torch", "2.11", "")
    told = Requirement.parse("ray[client]>=2.51; extra == 'ray'")
    assert told == ("ray", "2.51", "ray")


@pytest.mark.parametrize(
    ("requirement", "status", "optional"),
    [
        (Requirement("psutil", "1.0", ""), "ok", False),
        (Requirement("psutil", "999.0", ""), "degraded", False),
        (Requirement("no-such-package", "", ""), "missing", False),
        (Requirement("no-such-package", "", "extra"), "missing", True),
    ],
)
def test_a_package(requirement: Requirement, status: str, optional: bool) -> None:
    check = package_checks.check(requirement)
    assert (check.status, check.optional) == (status, optional)
    assert check.is_problem is (status != "ok" and not optional)


def test_a_package_that_cannot_be_imported() -> None:
    facts = {"packages": {"errors": {"libcst": "ImportError: no native module"}}}
    checks = by_name(package_checks.checks(facts))
    assert checks["libcst"].status == "missing" and checks["libcst"].is_problem
    assert "no native module" in checks["libcst"].value
    assert checks["psutil"].status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["psutil", "rich", "jinja2", "libcst", "numpy"])
def test_a_broken_package_as_a_user_meets_it(module: str, tmp_path: Path) -> None:
    """It is told, whatever of torchproof needs it."""
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / f"{module}.py").write_text('raise ImportError("is broken")')
    path = os.pathsep.join([str(tmp_path / "found"), os.environ.get("PYTHONPATH", "")])
    done = torchproof(
        "doctor", "--format", "json", cwd=tmp_path, variables={"PYTHONPATH": path}
    )
    assert done.returncode == 1
    assert told(done)[module]["status"] == "missing"


def test_versions_are_compared_as_numbers() -> None:
    assert package_checks._numbers("1.10.0rc1") > package_checks._numbers("1.9")


# -- torch and GPUs, from what the process with torch saw ------------------------------

GPU = {"name": "H200", "capability": [9, 0], "total_bytes": 2**37, "free_bytes": 2**36}
GPU |= {"error": ""}
TORCH = {"version": "2.13.0", "seconds": 1.0, "cuda_build": "13.0", "rocm_build": None}


def gpu(torch: Mapping[str, Any] = TORCH, **cuda: Any) -> dict[str, MachineCheck]:
    facts = {"devices": [], "warnings": [], "triton": {"version": "3.5"}, **cuda}
    return by_name(torch_checks.gpu_checks({"torch": torch, "cuda": facts}))


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = gpu(devices=[GPU, {**GPU, "free_bytes": 2**20}])
    assert checks["cuda:0"].status == "ok" and "64.0 GiB free" in checks["cuda:0"].value
    assert checks["cuda:1"].status == "degraded"
    assert checks["triton"].status == "ok"
    assert gpu(devices=[{**GPU, "capability": [6, 1]}])["cuda:0"].status == "degraded"
    failed = gpu(devices=[{**GPU, "error": "no kernel image", "free_bytes": None}])
    assert failed["cuda:0"].status == "missing"
    assert gpu(devices=[GPU], triton={"error": "no"})["triton"].status == "missing"
    monkeypatch.setenv("CC", "no-such-compiler")
    assert gpu(devices=[GPU])["C compiler"].status == "missing"


@pytest.mark.parametrize(
    ("driver", "build", "status", "optional"),
    [
        ("", None, "missing", True),
        ("", "13.0", "missing", True),
        ("570.1", None, "degraded", False),
        ("570.1", "13.0", "missing", False),
    ],
    ids=["no GPU", "no GPU, CUDA build", "CPU build beside a GPU", "unusable GPU"],
)
def test_no_usable_gpu(
    driver: str,
    build: str | None,
    status: str,
    optional: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch_checks, "_driver", lambda: driver)
    check = gpu({**TORCH, "cuda_build": build})["CUDA"]
    assert (check.status, check.optional) == (status, optional)


@pytest.mark.parametrize(
    ("dynamo", "status"),
    [
        ({"graphs": 1, "right": True}, "ok"),
        ({"graphs": 0, "right": True}, "degraded"),
        ({"graphs": 1, "right": False}, "missing"),
        ({"error": "RuntimeError: Python 3.15 is not supported"}, "missing"),
    ],
)
def test_torch_compile(dynamo: dict[str, Any], status: str) -> None:
    hooks = {"features": 1, "names": 1, "lacking": []}
    facts = {"torch": TORCH, "hooks": hooks, "dynamo": dynamo}
    checks = by_name(torch_checks.checks(facts))
    assert checks["torch.compile"].status == status
    assert checks["hooks"].status == "ok"


def test_a_process_that_ended_while_it_tried_the_gpu() -> None:
    ended = {"stage": "cuda", "how": "was killed by SIGKILL", "said": "CUDA error"}
    checks = by_name(torch_checks.gpu_checks({"torch": TORCH, "ended": ended}))
    assert checks["CUDA"].is_problem and "SIGKILL" in checks["CUDA"].value


# -- what is printed -------------------------------------------------------------------


def test_a_bug_report_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_text_and_exit_code() -> None:
    good = MachineCheck("a", "one", "ok", "1.0", "works")
    extra = MachineCheck("a", "two", "missing", "", "nothing", "install", optional=True)
    bad = MachineCheck("b", "three", "degraded", "x" * 200, "slow", "change it")
    healthy = machine.render([good, extra], "text", verbose=False)
    assert "works here" in healthy and "means: nothing (optional)" in healthy
    assert "means: works" not in healthy
    text = machine.render([good, extra, bad], "text", verbose=True)
    assert "To look at first: three" in text and "means: works" in text
    assert machine.document([good, extra])["healthy"]
    assert not machine.document([good, bad])["healthy"]
