"""Problems of torch itself, one program each: what goes wrong, and what helps.

A file has a docstring and two parts. The first part asserts the problem, the second,
after `# The workaround`, that the workaround works. The docstring is a title, a text, a
paragraph `Workaround:`, and fields, some of them optional:

    Group: of docs/reference/limitations.md
    Code: of the rule that shows the problem
    Reference: a page about it
    Upstream: numbers of PyTorch's issues, the main one first
    Needs: inductor or cuda
    Since, Fixed: the first torch with it, and the first without it
    Wrong, Right: versions under which the first part was true, or was not
    Unshown: versions that have the problem, although the program did not show it

docs/reference/limitations.md lists all of them. The rules AD1xx look for those that a
graph can hit silently. Start with `__init__.py`. Imports nothing of torchproof.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
SEAM = "\n# The workaround\n"
FIELDS = (
    *("Group", "Code", "Reference", "Upstream", "Needs"),
    *("Since", "Fixed", "Wrong", "Right", "Unshown"),
)


@dataclass(frozen=True)
class KnownProblem:
    """One file: what its docstring says, and the program."""

    name: str
    title: str
    text: str
    workaround: str
    source: str
    group: str
    code: str | None = None
    reference: str | None = None
    upstream: tuple[str, ...] = ()
    needs: str | None = None
    since: str = ""
    fixed: str = ""
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    unshown: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def is_target(self) -> bool:
        """Whether `check` takes its factory rather than the program as a script."""
        return "\ndef make(" in self.source


def read(path: Path) -> KnownProblem:
    whole = path.read_text(encoding="utf-8")
    tree = ast.parse(whole)
    text = ast.get_docstring(tree)
    assert text is not None and tree.body[0].end_lineno is not None, path
    title, *paragraphs = text.split("\n\n")
    fields = dict(line.split(": ", 1) for line in paragraphs.pop().split("\n"))
    assert set(fields) <= set(FIELDS), f"{path}: {fields}"
    plain = [" ".join(each.split()) for each in paragraphs]
    ways = [each for each in plain if each.startswith("Workaround: ")]
    listed = ("Upstream", "Wrong", "Right", "Unshown")
    return KnownProblem(
        name=path.stem,
        title=title.rstrip("."),
        text=" ".join(each for each in plain if each not in ways),
        workaround=" ".join(each.removeprefix("Workaround: ") for each in ways),
        source="\n".join(whole.splitlines()[tree.body[0].end_lineno :]).strip("\n")
        + "\n",
        **{n.lower(): v for n, v in fields.items() if n not in listed},  # type: ignore[arg-type]
        **{n.lower(): tuple(fields[n].split(", ")) for n in listed if n in fields},  # type: ignore[arg-type]
    )


@functools.cache
def named(name: str) -> KnownProblem:
    return read(FOLDER / f"{name}.py")


def every() -> list[KnownProblem]:
    paths = (path for path in FOLDER.glob("*.py") if path.stem != "__init__")
    return [read(path) for path in sorted(paths)]
