"""Rules about imports that the contracts in pyproject.toml cannot express."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torchproof
from torchproof.targets import search_path

PACKAGE = Path(torchproof.__file__).parent
# Programs that are shown and run, and that nothing imports.
PROGRAMS = PACKAGE / "known_problems"
PRIVATE = re.compile(r"torch\.([\w.]+\.)?_(?!_)[\w.]*")


def private_torch(path: Path) -> Iterator[int]:
    """The lines whose code, not its text, names something private of torch."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            names = [ast.unparse(node)]
        else:
            continue
        if any(map(PRIVATE.fullmatch, names)):
            yield node.lineno


def test_only_torch_private_names_private_torch() -> None:
    # `torch.` or `from torch` before an underscore: other files need no parser.
    hint = re.compile(r"torch[\w. ]*(?:\._|import[ (]+_)")
    wrong = [
        f"{path}:{line}"
        for path in PACKAGE.rglob("*.py")
        if "torch_private" not in path.parts
        and PROGRAMS not in path.parents
        and hint.search(path.read_text())
        for line in private_torch(path)
    ]
    assert not wrong, "move to torch_private/: " + ", ".join(wrong)


def test_every_standard_module_in_use_is_known() -> None:
    """A program's own file with such a name must not be imported in its place."""
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if not {"cli", "cluster"} & set(path.parts) and PROGRAMS not in path.parents:
            text = path.read_text(encoding="utf-8")
            used |= set(re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE))
    assert used & sys.stdlib_module_names == search_path._OWN_MODULES


def test_public_names_are_the_same_for_type_checkers() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    declared = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert declared == torchproof._HOME
