"""Builds the wheel and the source distribution and uses them: `make dist`.

Both are built into dist/ and must contain what the repository does. Each is then
installed into an empty environment in another folder, where users' commands have to end
with the exit codes of the contract. It prints what is wrong, and exits with 1 then.

    python scripts/distributions.py [--python PATH] [--index URL]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ("build", "twine", "check-wheel-contents", "mypy")
TYPED = ROOT / "tests/user_types/user_program.py"
# In the wheel besides the package, all in the folder of its metadata.
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
# In the wheel, for the environment's share/, with where it is in the repository.
SHARED = {"data/share/man/man1/torchproof.1": "docs/man/torchproof.1"}
GENERATED = {"PKG-INFO"}  # in the source distribution, but in no repository

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        x = self.layer(x).relu()
        {line}
        return x.tanh() * 2

def make():
    return Net().eval(), [(torch.randn(8, 16),) for _ in range(3)]
"""
SCRIPT = """
import torch
from {module} import make

fn, calls = make()
step = torch.compile(fn, backend="eager")
for call in calls:
    step(*call)
"""
COMPILE = """
import torch, torchproof
from clean import make

(plain, calls), (model, _) = make(), make()
model.load_state_dict(plain.state_dict())
model = torchproof.compile(model)
for call in calls:
    torch.testing.assert_close(model(*call), plain(*call))
status = torchproof.status(model)
print(status)
assert status.compiled_calls == len(calls), status
"""
WHERE = """
import pathlib, sys, torchproof

folder = pathlib.Path(torchproof.__file__).parent
assert folder.is_relative_to(sys.prefix), folder
print((folder / "py.typed").exists())
"""
FILES = {
    "clean.py": PROGRAM.format(line="x = x + 1"),
    "broken.py": PROGRAM.format(line="x = x if x.sum().item() > 0 else -x"),
    "train.py": SCRIPT.format(module="clean"),
    "broken_train.py": SCRIPT.format(module="broken"),
    "use_compile.py": COMPILE,
    "where.py": WHERE,
}


@dataclass(frozen=True)
class Command:
    """What a user runs: its exit code, and what it prints or writes."""

    words: str
    exit_code: int
    shows: str = ""  # in stdout, or in the file that it writes
    writes: str | None = None

    def argv(self, environment: Path) -> list[str]:
        program, *arguments = self.words.split()
        return [str(environment / "bin" / program), *arguments]


def commands(version: str) -> tuple[Command, ...]:
    quick = "--effort quick -q"
    timed = "--strategies full --repeats 1 -q"
    return (
        Command("python where.py", 0, "True"),
        Command("torchproof --version", 0, f"torchproof {version}"),
        Command("python -m torchproof --version", 0, f"torchproof {version}"),
        Command("torchproof rule GB101", 0, "GB101"),
        Command("torchproof completion bash", 0, "complete -F"),
        Command("torchproof doctor --format json -q", 0, '"healthy": true'),
        Command("torchproof check --list", 0, "workload:nanovlm"),
        Command(f"torchproof check workload:decoder {quick}", 0, "workload:decoder"),
        Command(f"torchproof check workload:nanovlm-original {quick}", 1, "GB1"),
        Command(f"torchproof check clean.py:make {quick}", 0, "clean.py"),
        Command(f"torchproof check broken.py:make {quick}", 1, "GB101"),
        Command(f"torchproof check train.py {quick}", 0, "train.py"),
        Command(f"torchproof check broken_train.py {quick}", 1, "GB101"),
        Command("torchproof check broken.py --effort static", 0, "GB101"),
        Command("torchproof check broken.py --effort static --fail-on low", 1, "GB101"),
        Command("torchproof check no_file.py:make -q", 2),
        Command(f"torchproof bench clean.py:make {timed}", 0, "full"),
        Command("python use_compile.py", 0, "compiled"),
        Command("torchproof show -q", 0, "clean.py:make"),
        Command(
            "torchproof show --format html -o run.html -q",
            0,
            "<html",
            writes="run.html",
        ),
        Command("torchproof show no_run", 2),
        Command("torchproof show --list", 0, "clean"),
    )


def build(folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """Builds both into dist/; returns them, and what the tools said about them."""
    pip, tool = new_environment(folder), str(folder / "bin/python")
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", *TOOLS], check=True)
    shutil.rmtree(DIST, ignore_errors=True)
    make = [tool, "-m", "build", "-o", str(DIST), str(ROOT)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    [wheel], [source] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    said = {
        "twine check": [tool, "-m", "twine", "check", "--strict", wheel, source],
        "check-wheel-contents": [tool, "-m", "check_wheel_contents", wheel],
    }
    return wheel, source, {name: _problem(argv) for name, argv in said.items()}


def typed(tools: Path, environment: Path) -> str:
    """What a user's type checker says about a program that uses the package."""
    flags = ["--strict", "--no-incremental", "--config-file", ""]
    python = ["--python-executable", str(environment / "bin/python")]
    mypy = [str(tools / "bin/python"), "-m", "mypy"]
    return _problem([*mypy, *flags, *python, str(TYPED)], environment)


def _problem(argv: list[Any], folder: Path = ROOT) -> str:
    """What a tool says if it fails, or nothing."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def tracked() -> set[str]:
    """The files of the repository, except hidden ones."""
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    return {name for name in names.splitlines() if not name.startswith(".")}


def wheel_differences(wheel: Path, repository: Iterable[str]) -> list[str]:
    """What the wheel lacks of the package's files, and what it should not hold."""
    names = set(zipfile.ZipFile(wheel).namelist())
    [info] = {name.split("/")[0] for name in names if ".dist-info/" in name}
    data = info.replace(".dist-info", ".data")
    wanted = {
        name.removeprefix("src/") for name in repository if name.startswith("src/")
    }
    wanted |= {f"{info}/{name}" for name in METADATA}
    wanted |= {f"{data}/{name}" for name in SHARED}
    return _differences(names, wanted)


def source_differences(source: Path, repository: Iterable[str]) -> list[str]:
    """The same for the source distribution, which holds the whole repository."""
    with tarfile.open(source) as archive:
        members = [each.name for each in archive.getmembers() if each.isfile()]
    names = {name.split("/", 1)[1] for name in members}
    # hatchling adds the list of ignored files, to build from it as from here.
    return _differences(names - {".gitignore"}, {*repository, *GENERATED})


def _differences(there: set[str], wanted: set[str]) -> list[str]:
    lacks = [f"lacks {name}" for name in sorted(wanted - there)]
    return lacks + [f"should not contain {name}" for name in sorted(there - wanted)]


def install(folder: Path, distribution: Path, options: argparse.Namespace) -> Path:
    """An empty environment with one distribution, its dependencies and nothing else."""
    pip = new_environment(folder, options.python)
    pip += ["-c", str(ROOT / "constraints.txt")]
    if options.index:
        torch = ["--no-deps", "--index-url", options.index, "torch"]
        subprocess.run([*pip, *torch], check=True, cwd=folder)
    subprocess.run([*pip, str(distribution)], check=True, cwd=folder)
    return folder


def new_environment(folder: Path, python: str = sys.executable) -> list[str]:
    """Makes an empty environment; returns the command that installs into it."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q"]
    return [*pip, "--disable-pip-version-check"]


def used(environment: Path, version: str) -> Iterator[str]:
    """Runs a user's commands in a folder of their own; what is wrong with each."""
    folder = environment / "work"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    own = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {key: value for key, value in os.environ.items() if key not in own}
    variables["TORCHINDUCTOR_CACHE_DIR"] = str(environment / "inductor")
    for command in commands(version):
        done = subprocess.run(
            command.argv(environment),
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if problem := problem_of(command, done, folder):
            yield problem


def problem_of(
    command: Command, done: subprocess.CompletedProcess[str], folder: Path
) -> str:
    """What a command said if it did not end and answer as it should, or nothing."""
    written = folder / command.writes if command.writes else None
    if written is None:
        answer = done.stdout
    else:
        answer = written.read_text() if written.exists() else ""
    is_traceback = "Traceback (most recent call last)" in done.stderr
    is_expected = done.returncode == command.exit_code and command.shows in answer
    if is_expected and not is_traceback:
        return ""
    codes = f"{done.returncode} instead of {command.exit_code}"
    said = (done.stdout + done.stderr)[-2000:]
    return f"`{command.words}` exited with {codes}: {said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="of the environments")
    parser.add_argument("--index", help="index of torch builds (default: pip's own)")
    options = parser.parse_args()
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="torchproof-dist-") as temporary:
        folder = Path(temporary)
        wheel, source, tools = build(folder / "tools")
        names = tracked()
        contents = {
            wheel: wheel_differences(wheel, names),
            source: source_differences(source, names),
        }
        for file, differences in contents.items():
            print(f"{file.name}: installing and running it", file=sys.stderr)
            environment = install(folder / file.suffix, file, options)
            version = file.name.split("-")[1].removesuffix(".tar.gz")
            problems = [*differences, *used(environment, version)]
            found += [f"{file.name}: {problem}" for problem in problems]
        tools["mypy --strict"] = typed(folder / "tools", folder / wheel.suffix)
        found += [f"{name}: {said}" for name, said in tools.items() if said]
    print("\n".join(found) or f"{wheel.name} and {source.name}: passed")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
