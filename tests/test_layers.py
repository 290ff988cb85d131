"""The import table and the size budgets of the package, read from its source."""

import ast
import functools
import importlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from import_table import MAY_IMPORT, WITH_EXTRAS, WITHOUT_TORCH

import torchproof
from torchproof.targets import search_path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "torchproof"

# Rooms whose installed packages are limited to these.
INSTALLED = {
    "records": {"numpy"},
    "process": {"psutil"},
    "torch_private": {"numpy", "torch"},
}

FUNCTION_LINES = 50
POSITIONAL_PARAMETERS = 4
DRAWERS = {"base", "common", "core", "helper", "helpers", "misc", "util", "utils"}
# Programs that tests run; they are as long and as odd as what they stand for.
SPECIMENS = tuple(
    ROOT / "tests" / name for name in ("rules", "models", "static/programs")
)
PAGES = (
    "agents architecture bench check ci compare compile completion decide doctor fix"
    " getting-started graph integrations load loadtest log mcp notebooks pack ranks"
    " rule show step timelines tune"
)
REFERENCE = """
compat first-seconds fixes graph-coverage limitations load-tests precision
recipes reliability results rules security workloads zoo
"""
DOCS = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
DOCS |= {f"docs/{name}.md" for name in PAGES.split()}
DOCS |= {f"docs/reference/{name}.md" for name in REFERENCE.split()}


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


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


# Where statements have other statements; expressions are most of a tree.
BLOCKS = {"body", "orelse", "finalbody", "handlers", "cases"}


def walk(
    node: ast.AST, *, into_expressions: bool = True
) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it runs later than the loading of its file."""
    waiting = [(node, False)]
    while waiting:
        node, late = waiting.pop()
        yield node, late
        body_is_late = is_function(node) or is_typing_only(node)
        for field, value in ast.iter_fields(node):
            if not into_expressions and field not in BLOCKS:
                continue
            children = value if isinstance(value, list) else [value]
            inner = late or (body_is_late and field == "body")
            waiting += [(each, inner) for each in children if isinstance(each, ast.AST)]


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def is_typing_only(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name | ast.Attribute)
        and ast.unparse(node.test).endswith("TYPE_CHECKING")
    )


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    """Every module a file imports, relative names resolved.

    `from a import b` gives `a.b`, be b a module or a name.
    """
    package = path.relative_to(PACKAGE.parent).parent.parts
    dynamic = "import_module" in (text := path.read_text()) or "__import__" in text
    for node, late in walk(parse(path), into_expressions=dynamic):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*start, *filter(None, [node.module])))
            for alias in node.names:
                yield Import(f"{origin}.{alias.name}", node.lineno, late)
        elif isinstance(node, ast.Call) and node.args:
            name = node.args[0]
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if (
                called in {"import_module", "__import__"}
                and isinstance(name, ast.Constant)
                and isinstance(name.value, str)
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
    fields = [getattr(node, name, None) for name in BLOCKS]
    for child in itertools.chain(*(f for f in fields if isinstance(f, list))):
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
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and is_private(ast.unparse(node))
        ):
            yield node.lineno


def is_private(name: str) -> bool:
    """`torch._dynamo` and `torch.fx._x`, but neither `torch.__version__` nor a call."""
    return re.fullmatch(r"torch\.([\w.]+\.)?_(?!_)[\w.]*", name) is not None


MOST_PACKAGES, MOST_MODULES, MOST_EDGES = 16, 7, 80


def test_the_top_level_is_small() -> None:
    packages = [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    assert len(packages) <= MOST_PACKAGES
    assert len([*PACKAGE.glob("*.py")]) <= MOST_MODULES


def test_every_package_and_module_is_in_the_table() -> None:
    assert rooms_on_disk() == set(MAY_IMPORT), (
        "MAY_IMPORT of tests/import_table.py has to list exactly what is there:"
        " decide what each package may import"
    )


def test_the_table_is_small_and_has_no_cycle() -> None:
    assert sum(map(len, MAY_IMPORT.values())) <= MOST_EDGES
    left = dict(MAY_IMPORT)
    while free := {name for name, allowed in left.items() if not allowed & set(left)}:
        left = {name: allowed for name, allowed in left.items() if name not in free}
    assert not left, f"these import each other: {sorted(left)}"


def package_imports() -> Iterator[tuple[Path, Import, str]]:
    """Every import of another package: the file, the import, the other package."""
    for path in sources(PACKAGE):
        for found in imports(path):
            there = imported_room(found.name)
            if there not in (None, room(path)) and not is_public(path, found.name):
                assert there is not None
                yield path, found, there


def is_public(path: Path, name: str) -> bool:
    """The version, and the public functions that bundled models use as users do."""
    return name == "torchproof.__version__" or (
        "workloads" in path.parts and name == "torchproof"
    )


def test_packages_import_only_what_the_table_allows() -> None:
    used: dict[str, set[str]] = {name: set() for name in MAY_IMPORT}
    wrong = []
    for path, found, there in package_imports():
        here = room(path)
        used[here].add(there)
        if there not in MAY_IMPORT[here]:
            wrong.append(f"{shown(path, found.line)}: {here} imports {there}")
    assert not wrong, "\n".join(wrong)
    used["__init__"] |= {name.split(".")[1] for name in torchproof._HOME.values()}
    unused = {
        n: sorted(MAY_IMPORT[n] - used[n]) for n in used if MAY_IMPORT[n] - used[n]
    }
    assert not unused, f"allowed and not used: {unused}"


def test_packages_are_used_through_their_exports() -> None:
    wrong = []
    for path, found, there in package_imports():
        if not (PACKAGE / there).is_dir() or there == "__init__":
            continue
        name = found.name.removeprefix(f"torchproof.{there}").lstrip(".")
        package = importlib.import_module(f"torchproof.{there}")
        # The helper behind the exports cannot itself be exported by it.
        if name and name not in package.__all__ and name != "lazy.lazy_exports":
            wrong.append(f"{shown(path, found.line)}: {there} does not export {name}")
    assert not wrong, "\n".join(wrong)


def declared_exports(path: Path) -> dict[str, str]:
    """The names that a package exports to type checkers, each with its module."""
    return {
        alias.asname: str(node.module)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def test_public_names_are_the_same_for_type_checkers() -> None:
    assert declared_exports(PACKAGE / "__init__.py") == torchproof._HOME


@pytest.mark.parametrize(
    "package", sorted(name for name in MAY_IMPORT if (PACKAGE / name).is_dir())
)
def test_exports_are_the_same_for_type_checkers(package: str) -> None:
    declared = set(declared_exports(PACKAGE / package / "__init__.py"))
    module = importlib.import_module(f"torchproof.{package}")
    assert declared == set(module.__all__)
    for name in declared:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(
    "package", sorted(name for name in MAY_IMPORT if (PACKAGE / name).is_dir())
)
def test_a_package_says_what_it_takes_and_gives(package: str) -> None:
    text = ast.get_docstring(parse(PACKAGE / package / "__init__.py")) or ""
    assert all(word in text for word in ("In: ", "Out: ", "Start with `", "Imports "))
    named = set(re.findall(r"`(\w+)`", text[text.rindex("Imports ") :]))
    assert named == MAY_IMPORT[package]


def is_without_torch(path: Path) -> bool:
    dotted = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return any(
        dotted == name or dotted.startswith(f"{name}.") for name in WITHOUT_TORCH
    )


def test_what_needs_no_torch_does_not_import_it() -> None:
    wrong = [
        shown(path, found.line)
        for path in sources(PACKAGE)
        for found in imports(path)
        if found.name.split(".")[0] == "torch"
        if is_without_torch(path)
    ]
    assert not wrong, ", ".join(wrong)


def test_packages_use_only_their_installed_packages() -> None:
    wrong = []
    for path in sources(PACKAGE):
        allowed = INSTALLED.get(room(path))
        for found in imports(path):
            first = found.name.split(".")[0]
            ours = first == "torchproof" or first in sys.stdlib_module_names
            if allowed is not None and not ours and first not in allowed:
                wrong.append(f"{shown(path, found.line)}: imports {first}")
    assert not wrong, "\n".join(wrong)


def test_only_torch_private_names_private_torch() -> None:
    wrong = [
        shown(path, line)
        for path in sources(PACKAGE)
        if room(path) != "torch_private"
        for line in private_torch(path)
    ]
    assert not wrong, "move to torch_private/: " + ", ".join(wrong)


def test_every_standard_module_in_use_is_known() -> None:
    """A program's own file with such a name must not be imported in its place."""
    used = {
        found.name.partition(".")[0]
        for path in sources(PACKAGE)
        if not {"cli", "cluster"} & set(path.parts)
        for found in imports(path)
    }
    assert used & sys.stdlib_module_names == search_path._OWN_MODULES


def test_loading_what_needs_no_torch_does_not_load_it() -> None:
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in sources(PACKAGE)
        if is_without_torch(path) and path.stem not in ("__init__", "__main__")
        if path.relative_to(PACKAGE).as_posix() not in WITH_EXTRAS
    ]
    names += ["torchproof", "torchproof.targets.workloads"]
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


@pytest.mark.parametrize("folder", ["src", "benchmarks", "scripts"])
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


def test_module_names_follow_the_glossary() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = page.partition("| instead of | say |")[2].partition("\n\n")[0]
    avoided = {
        word.strip()
        for row in rows.splitlines()[2:]
        for word in row.split("|")[1].split(",")
    }
    assert len(avoided) > 50
    # A word alone; in a longer name it may say of what, as in search_words.
    wrong = [
        str(path.relative_to(ROOT)) for path in sources(PACKAGE) if path.stem in avoided
    ]
    assert not wrong, f"choose a word of the glossary: {', '.join(wrong)}"


def test_documents_are_listed() -> None:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    extra = {path.relative_to(ROOT).as_posix() for path in found} - DOCS
    assert not extra, f"not in DOCS of tests/test_layers.py: {sorted(extra)}"
