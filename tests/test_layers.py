"""The import table and the size budgets of the package, read from its source.

A room is a module or a folder directly under src/torchproof. `MAY_IMPORT` says which
other rooms it may import; `MAY_IMPORT_LATE` which ones only inside a function or under
`if TYPE_CHECKING`, so that loading the room does not load them.
"""

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "torchproof"

MAY_IMPORT: dict[str, set[str]] = {
    "identity": set(),
    "records": set(),
    "modules": set(),
    "samples": set(),
    "lifeline": set(),
    "layout": {"lifeline"},
    # Names, folders of people and secrets, out of any text.
    "redaction": set(),
    "torch_private": set(),
    # Where a step begins; production code loads it.
    "boundary": {"records", "torch_private"},
    "workloads": {"boundary", "torch_private"},
    "guards": set(),
    "places": {"records"},
    "stacks": {"records"},
    "store": {"records"},
    "decisive": {"records", "guards"},
    "tracelog": {"records", "decisive", "guards", "stacks"},
    "reads": {"records", "places"},
    "rules": {"records", "places", "guards"},
    "anatomy": {"records", "places"},
    "verdict": {"records", "samples"},
    # What a rule says of itself is part of a report.
    "report": {"__init__", "cachefolders", "packs", "records", "rules", "verdict"},
    # Where compiled code is cached, found without torch.
    "cachefolders": {"records"},
    # What a pack is on disk; production code loads it.
    "packs": {"records"},
    # Source that is read and never run.
    "static": {"records", "modules", "places"},
    # The experiment log: a Markdown file that people write in as well.
    "journal": {"records", "report", "store", "verdict"},
    # What pytest loads; at first use the rest.
    "pytest_plugin": {"records"},
    # What a test compiles, watched in its process; pytest_plugin loads it at first use.
    "budget": {"api", "calls", "capture", "environment", "observe", "records"}
    | {"checking", "report", "rules", "streams", "target", "torch_private"},
    "target": {"records", "modules", "workloads"},
    # In the child process, with torch.
    "introspect": {"records"},
    "streams": {"lifeline"},
    "script": {"streams", "target"},
    "observe": {"records", "introspect", "streams", "tracelog"},
    "numerics": {"records", "torch_private"},
    "calls": {"records", "introspect", "places", "target", "workloads"},
    "environment": set(),
    "gauges": {"samples"},
    "caches": set(),
    "ledger": {"caches", "torch_private"},
    "steps": {"introspect", "torch_private"},
    "alternation": {"target", "environment", "gauges", "ledger", "samples"}
    | {"lifeline", "script", "steps", "streams", "torch_private"},
    "guard_filters": {"strategies"},
    "strategies": {"records", "guards", "torch_private"},
    # The chosen strategy as a file, and the model it was chosen for.
    "recipe": {"environment", "records", "strategies"},
    "child": {"records", "observe", "target", "calls", "environment"}
    | {"lifeline", "script", "streams"},
    "probing": {"calls", "gauges", "recipe", "strategies", "target"}
    | {"torch_private"},
    "arm": {"records", "places", "target", "calls", "environment", "gauges"}
    | {"probing"}
    | {"guard_filters"}
    | {"ledger"}
    | {"anatomy", "diagnosis", "numerics", "samples", "strategies", "torch_private"},
    "diagnosis": {"records", "target", "calls", "introspect", "numerics", "places"}
    | {"reads", "stacks", "torch_private"},
    "audit": {"records", "calls", "capture", "environment", "introspect", "places"}
    | {"lifeline", "script", "stacks", "streams", "target", "torch_private"},
    # What production code loads; its own file only records, the rest at first use.
    "tensors": set(),
    "runtime": {"records", "recipe", "samples", "strategies", "tensors"}
    | {"torch_private"},
    "replay": {"records", "places", "recipe", "strategies", "tensors"}
    | {"torch_private"},
    # A deploy pack put to use by production code.
    "loading": {"environment", "modules", "packs", "recipe", "records", "runtime"}
    | {"tensors", "torch_private"},
    # Deploy packs: made in one child, tried in another.
    "deploy": {"__init__", "calls", "capture", "environment", "introspect", "lifeline"}
    | {"loading", "numerics", "packs", "places", "recipe", "records", "redaction"}
    | {"runtime", "strategies", "streams", "target", "tensors", "torch_private"},
    # Starts the child and reads its stream, without torch.
    "capture": {"records", "places", "streams", "target", "tracelog"},
    "measure": {"records", "layout", "samples", "strategies", "streams", "target"}
    | {"lifeline", "tracelog"},
    "questions": {"records", "guard_filters", "measure", "strategies"},
    # `check`: its parts, the source read beside them, and what an earlier run had.
    "checking": {"records", "audit", "capture", "measure", "places", "rules", "static"}
    | {"store", "strategies", "target"},
    # `tune`: which way to run a target is tried next, and which one is chosen.
    "tuning": {"records", "capture", "checking", "measure", "recipe"}
    | {"lifeline", "store", "strategies", "target"},
    "api": {"records", "store", "target", "capture", "checking", "measure"}
    | {"questions", "tuning"},
    "flags": {"records"},
    # What a search is doing, live.
    "board": {"report"},
    "output": {"board", "records", "report", "verdict"},
    "showing": {"cachefolders", "output", "packs", "records", "report"},
    "cli": {"__init__", "flags", "records", "store", "rules", "report", "target"}
    | {"capture", "journal", "output", "packs", "questions", "showing", "verdict"}
    | {"workloads"},
    "__init__": set(),
    "__main__": {"cli"},
}
MAY_IMPORT_LATE = {
    "records": {"identity"},
    "cli": {"api"},
    "pytest_plugin": {"budget", "report"},
    "__init__": {"api", "boundary", "loading", "records", "replay", "runtime"}
    | {"verdict"},
    "observe": {"torch_private"},
    "anatomy": {"torch_private"},
    "runtime": {"replay"},
}

# Rooms that never import torch, not even inside a function.
DESK: tuple[str, ...] = ("identity", "records", "modules", "samples", "layout")
DESK += ("places", "guards", "stacks", "reads", "tracelog", "store", "rules", "verdict")
DESK += ("recipe", "report", "streams", "capture", "measure", "questions", "checking")
DESK += ("api", "tuning", "flags", "board", "output", "static", "journal", "cli")
DESK += ("cachefolders", "showing")
DESK += ("packs", "redaction", "decisive", "lifeline", "__init__", "__main__")
# Of those, what only a process of its own loads, where the extra `ray` is installed.
WITH_RAY = {
    PACKAGE / "tuning" / "cluster" / f"{name}.py" for name in ("bridge", "crew")
}
# Rooms whose installed packages are limited to these.
INSTALLED = {"records": set(), "torch_private": {"torch"}, "workloads": {"torch"}}

FILE_LINES = 400
FUNCTION_LINES = 50
POSITIONAL_PARAMETERS = 4
DRAWERS = {"base", "common", "core", "helper", "helpers", "misc", "util", "utils"}
# Programs that tests run; they are as long and as odd as what they stand for.
SPECIMENS = tuple(
    ROOT / "tests" / name for name in ("rules", "models", "static/programs")
)
PAGES = (
    "architecture bench check ci coverage decide graphs limitations log precision "
    "recipes reliability reports results rules runtime tune workloads"
)
DOCS = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
DOCS |= {f"docs/{name}.md" for name in PAGES.split()}


@dataclass(frozen=True)
class Import:
    """One imported module; `late` when loading the file does not import it."""

    name: str
    line: int
    late: bool


def sources(folder: Path) -> list[Path]:
    """The Python files under a folder, specimens left out."""
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if not any(specimen in path.parents for specimen in SPECIMENS)
    ]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def rooms_on_disk() -> frozenset[str]:
    return frozenset(room(path) for path in sources(PACKAGE))


def shown(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def walk(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it runs later than the loading of its file."""
    yield node, late
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        typing_only = (
            isinstance(node, ast.If)
            and field == "body"
            and ast.unparse(node.test).endswith("TYPE_CHECKING")
        )
        for child in children:
            if isinstance(child, ast.AST):
                inner = late or typing_only or (function and field == "body")
                yield from walk(child, inner)


def imports(path: Path) -> Iterator[Import]:
    """Every module a file imports, relative names resolved.

    `from a import b` gives `a.b`, be b a module or a name.
    """
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node, late in walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*start, *filter(None, [node.module])))
            for alias in node.names:
                yield Import(f"{origin}.{alias.name}", node.lineno, late)
        elif isinstance(node, ast.Call) and node.args:
            name, called = node.args[0], ast.unparse(node.func)
            if called.endswith(("import_module", "__import__")) and (
                isinstance(name, ast.Constant) and isinstance(name.value, str)
            ):
                yield Import(name.value, node.lineno, late)


def imported_room(name: str) -> str | None:
    """The room a dotted name belongs to; None outside the package."""
    parts = name.split(".")
    if parts[0] != "torchproof":
        return None
    known = len(parts) > 1 and parts[1] in rooms_on_disk() | set(MAY_IMPORT)
    return parts[1] if known else "__init__"


def functions(
    node: ast.AST, owner: ast.ClassDef | None = None
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, ast.ClassDef | None]]:
    """Every function and the class it is a method of."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, owner
            yield from functions(child)
        else:
            yield from functions(
                child, child if isinstance(child, ast.ClassDef) else owner
            )


def private_torch(path: Path) -> Iterator[int]:
    """The lines that name something private of torch, in code rather than in text."""
    for found in imports(path):
        if is_private(found.name):
            yield found.line
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and is_private(ast.unparse(node)):
            yield node.lineno


def is_private(name: str) -> bool:
    """`torch._dynamo` and `torch.fx._x`, but neither `torch.__version__` nor a call."""
    return re.fullmatch(r"torch\.([\w.]+\.)?_(?!_)[\w.]*", name) is not None


def test_every_room_is_in_the_table() -> None:
    missing = sorted(rooms_on_disk() - set(MAY_IMPORT))
    assert not missing, (
        f"not in MAY_IMPORT of tests/test_layers.py: {', '.join(missing)}. "
        "Decide what each may import and add a row."
    )


def test_the_table_is_whole_and_has_no_cycle() -> None:
    left = {
        name: allowed | MAY_IMPORT_LATE.get(name, set())
        for name, allowed in MAY_IMPORT.items()
    }
    unknown = set().union(DESK, INSTALLED, *left.values()) - set(MAY_IMPORT)
    assert not unknown, f"named in the table but without a row: {sorted(unknown)}"
    while free := {name for name, allowed in left.items() if not allowed & set(left)}:
        left = {name: allowed for name, allowed in left.items() if name not in free}
    assert not left, f"these rooms import each other: {sorted(left)}"


def test_rooms_import_only_what_the_table_allows() -> None:
    wrong = []
    for path in sources(PACKAGE):
        here = room(path)
        allowed = MAY_IMPORT.get(here, set()) | {here}
        for found in imports(path):
            there = imported_room(found.name)
            late = found.late and there in MAY_IMPORT_LATE.get(here, set())
            if there is not None and there not in allowed and not late:
                wrong.append(f"{shown(path, found.line)}: {here} imports {there}")
    assert not wrong, "\n".join(wrong)


def test_rooms_import_only_their_installed_packages() -> None:
    wrong = []
    for path in sources(PACKAGE):
        allowed = INSTALLED.get(room(path))
        for found in imports(path):
            first = found.name.split(".")[0]
            ours = first == "torchproof" or first in sys.stdlib_module_names
            if allowed is not None and not ours and first not in allowed:
                wrong.append(f"{shown(path, found.line)}: imports {first}")
            if room(path) in DESK and first == "torch":
                wrong.append(f"{shown(path, found.line)}: a desk room imports torch")
    assert not wrong, "\n".join(wrong)


def test_only_torch_private_names_private_torch() -> None:
    wrong = [
        shown(path, line)
        for path in sources(PACKAGE)
        if room(path) != "torch_private"
        for line in private_torch(path)
    ]
    assert not wrong, "move to torch_private.py: " + ", ".join(wrong)


def test_loading_the_desk_half_does_not_load_torch() -> None:
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in sources(PACKAGE)
        if room(path) in DESK and path.stem not in ("__init__", "__main__")
        if path not in WITH_RAY
    ]
    names += ["torchproof", "torchproof.workloads"]
    program = f"import sys, {', '.join(names)}\nsys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr or "torch was imported"


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "docs"])
def test_files_are_short(folder: str) -> None:
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for path in sources(ROOT / folder)
    }
    wrong = [shown(path, count) for path, count in lines.items() if count > FILE_LINES]
    assert not wrong, f"over {FILE_LINES} lines: {', '.join(wrong)}"


@pytest.mark.parametrize("folder", ["src", "benchmarks", "docs"])
def test_functions_are_short_and_take_few_positional_parameters(folder: str) -> None:
    wrong = []
    for path in sources(ROOT / folder):
        for function, owner in functions(parse(path)):
            place = f"{shown(path, function.lineno)}: {function.name}"
            assert function.end_lineno is not None
            lines = function.end_lineno - function.lineno + 1
            if lines > FUNCTION_LINES:
                wrong.append(f"{place} has {lines} lines, at most {FUNCTION_LINES}")
            static = any(
                isinstance(decorator, ast.Name) and decorator.id == "staticmethod"
                for decorator in function.decorator_list
            )
            count = len(function.args.posonlyargs) + len(function.args.args)
            count -= owner is not None and not static
            if count > POSITIONAL_PARAMETERS:
                wrong.append(
                    f"{place} takes {count} positional parameters, "
                    f"at most {POSITIONAL_PARAMETERS}"
                )
    assert not wrong, "\n".join(wrong)


def test_no_module_is_a_drawer() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources(PACKAGE)
        if DRAWERS & {part.strip("_") for part in path.with_suffix("").parts[-2:]}
    ]
    assert not wrong, f"name it after what it holds: {', '.join(wrong)}"


def test_documents_are_listed() -> None:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    extra = {path.relative_to(ROOT).as_posix() for path in found} - DOCS
    assert not extra, f"not in DOCS of tests/test_layers.py: {sorted(extra)}"
