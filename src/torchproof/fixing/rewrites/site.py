"""What a rewrite gets: a finding at its place in the syntax tree of its file.

A rewrite takes a `Site` and returns a `Draft`, or raises `Refused` with the reason why
the edit would not keep the meaning of the program.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst
from libcst.metadata import (
    CodeRange,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
)

from torchproof.fixing.observed_calls import ObservedCall
from torchproof.records import Finding, Tier

N = TypeVar("N", bound=cst.CSTNode)
Statement = cst.BaseStatement
Changes = dict[cst.CSTNode, cst.CSTNode | Sequence[Statement]]


class Refused(Exception):
    """The edit is not possible here, with the reason in one line."""

    names_code = True


class NoPattern(Refused):
    """The program has nothing here that the rewrite is for."""

    names_code = False


@dataclass(frozen=True)
class Draft:
    """An edited file: nothing has been proved yet."""

    title: str  # what the edit does: "compute both values, select with torch.where"
    text: str  # the whole file
    tier: Tier = "safe"
    needs_run: bool = False  # only a run shows whether it helps with the values there


@dataclass(frozen=True)
class File:
    """A parsed source file."""

    path: str
    text: str

    @functools.cached_property
    def wrapper(self) -> MetadataWrapper:
        try:
            # A parsed tree has no node twice: a copy, which would ensure that, is slow.
            return MetadataWrapper(cst.parse_module(self.text), unsafe_skip_copy=True)
        except cst.ParserSyntaxError as error:
            raise NoPattern(
                f"{self.path} is not valid Python: {error.message}"
            ) from None

    @functools.cached_property
    def positions(self) -> dict[cst.CSTNode, CodeRange]:
        return dict(self.wrapper.resolve(PositionProvider))

    @functools.cached_property
    def statements(self) -> list[tuple[cst.BaseStatement, CodeRange]]:
        found = self.positions.items()
        return [(n, r) for n, r in found if isinstance(n, cst.BaseStatement)]

    @functools.cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        return dict(self.wrapper.resolve(ParentNodeProvider))


@functools.lru_cache(maxsize=8)
def parsed(path: str, text: str) -> File:
    """A file, parsed once for all rewrites that are tried on it."""
    return File(path, text)


@dataclass(frozen=True)
class Site:
    """A finding at a line of a file; `columns` are what the traceback underlines.

    The line may be below the finding's own place: in the library that it calls.
    """

    finding: Finding
    file: File
    line: int
    columns: tuple[int, int] | None = None  # from 0, end exclusive
    inner: str | None = None  # the function that the line calls, by the stack
    is_entry: bool = False  # the program compiles the function itself
    # Runs the target in eager mode with this text of the file; what its probes record.
    probe: Callable[[str], Sequence[ObservedCall]] = lambda text: ()

    @property
    def module(self) -> cst.Module:
        return self.file.wrapper.module

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node).strip()

    def indent(self, node: cst.CSTNode) -> str:
        """The white space before a statement."""
        line = self.file.text.splitlines()[self.range_of(node).start.line - 1]
        return line[: len(line) - len(line.lstrip())]

    def range_of(self, node: cst.CSTNode) -> CodeRange:
        return self.file.positions[node]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.file.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterable[cst.CSTNode]:
        """The nodes around a node, innermost first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def around(self, node: cst.CSTNode, kind: type[N]) -> N | None:
        """The innermost node of a kind around a node."""
        return next((n for n in self.ancestors(node) if isinstance(n, kind)), None)

    @functools.cached_property
    def function(self) -> cst.FunctionDef:
        """The innermost function at the line."""
        return self._innermost(cst.FunctionDef, "is not inside a function")

    @functools.cached_property
    def statement(self) -> Statement:
        """The innermost statement at the line; of a block, the line of its header."""
        at = [
            n
            for n, r in self.file.statements
            if r.start.line <= self.line <= self._header_end(n, r).end.line
        ]
        if not at:
            raise NoPattern(f"line {self.line} is not a statement")
        return max(at, key=lambda n: self.range_of(n).start.line)

    def _header_end(self, node: cst.CSTNode, whole: CodeRange) -> CodeRange:
        """The range of a statement without its block."""
        body = getattr(node, "body", None)
        if not isinstance(body, cst.BaseSuite):
            return whole
        test = getattr(node, "test", None) or getattr(node, "iter", None)
        last = self.range_of(test) if test is not None else whole
        return CodeRange(whole.start, last.end if test is not None else whole.start)

    @functools.cached_property
    def expression(self) -> cst.BaseExpression | None:
        """The largest expression within the columns."""
        if self.columns is None:
            return None
        start, end = self.columns
        inside = [
            node
            for node, r in self.file.positions.items()
            if r.start.line == r.end.line == self.line
            and isinstance(node, cst.BaseExpression)
            and start <= r.start.column
            and r.end.column <= end
        ]
        widths = {n: self.range_of(n) for n in inside}
        return max(
            inside,
            key=lambda n: widths[n].end.column - widths[n].start.column,
            default=None,
        )

    def _innermost(self, kind: type[N], problem: str) -> N:
        inside = [
            node
            for node, r in self.file.statements
            if isinstance(node, kind) and r.start.line <= self.line <= r.end.line
        ]
        if not inside:
            raise NoPattern(f"line {self.line} {problem}")
        return max(inside, key=lambda n: self.range_of(n).start.line)

    # -- edits -----------------------------------------------------------------------

    def replaced(
        self,
        changes: Changes,
        imports: Iterable[str] = (),
        *,
        before: Mapping[Statement, Sequence[Statement]] | None = None,
        below_imports: Sequence[Statement] = (),
    ) -> str:
        """The text with nodes replaced; a statement may become several or none.

        `before` has statements to insert before others, `below_imports` those to insert
        below the first imports of the module.
        `imports` are what the new code names: `torch`, `math`, `torchproof.raise_if`.
        A name with a dot becomes `from torchproof import raise_if`.
        """
        replacer = _Replacer(changes, before or {})
        outermost = {self._outermost(node) for node in (*changes, *(before or {}))}
        body: list[Statement] = []
        for line in self.module.body:  # most of a large file stays as it is
            new = line.visit(replacer) if line in outermost else line
            if isinstance(new, cst.FlattenSentinel):
                body.extend(new)
            elif isinstance(new, cst.CSTNode):
                body.append(new)
        edited = self.module.with_changes(body=body)
        for name in imports:
            edited = _importing(edited, name)
        edited = _below_imports(edited, below_imports)
        text = edited.code
        if text == self.file.text:
            raise NoPattern("the edit changes nothing")
        return text

    def _outermost(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement of the module that a node is in."""
        *_, last, _ = (None, node, *self.ancestors(node))
        return last


class _Replacer(cst.CSTTransformer):
    def __init__(
        self, changes: Changes, before: Mapping[Statement, Sequence[Statement]]
    ) -> None:
        super().__init__()
        self._changes, self._before = changes, before

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> object:  # type: ignore[override]
        if first := self._before.get(original):  # type: ignore[call-overload]
            if not getattr(updated, "leading_lines", None):
                apart = [cst.EmptyLine(indent=False)] * 2
                updated = updated.with_changes(leading_lines=apart)
            return cst.FlattenSentinel([*first, updated])
        new = self._changes.get(original)
        if new is None:
            return updated if original not in self._changes else cst.RemoveFromParent()
        if isinstance(new, cst.CSTNode):
            return new
        if not new:
            return cst.RemoveFromParent()
        # Comments and blank lines before the statement stay before the first one.
        leading = getattr(updated, "leading_lines", None)
        alone = updated.with_changes(leading_lines=()) if leading else updated
        statements = [alone if each is original else each for each in new]
        if leading:
            first = statements[0]
            lines = (*leading, *getattr(first, "leading_lines", ()))
            statements[0] = first.with_changes(leading_lines=lines)
        return cst.FlattenSentinel(statements)


def _importing(module: cst.Module, name: str) -> cst.Module:
    """The module with an import of a name after its docstring and first imports."""
    origin, _, last = name.rpartition(".")
    if last in _imported(module, origin):
        return module
    text = f"from {origin} import {last}" if origin else f"import {name}"
    return _below_imports(module, [cst.parse_statement(f"{text}\n")])


def _below_imports(module: cst.Module, lines: Sequence[Statement]) -> cst.Module:
    """The module with lines after its docstring and first imports."""
    body = list(module.body)
    # Below a definition, an import would come too late for its decorators.
    first = itertools.takewhile(
        lambda line: not isinstance(line, (cst.ClassDef, cst.FunctionDef)), body
    )
    index = max((i for i, line in enumerate(first, 1) if _is_import(line)), default=0)
    if not index and body and module.get_docstring() is not None:
        index = 1
    return module.with_changes(body=[*body[:index], *lines, *body[index:]])


def _imported(module: cst.Module, origin: str) -> set[str]:
    """The names that the module imports from a module, or as modules, at the top."""
    found: set[str] = set()
    for line in module.body:
        for each in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(each, cst.ImportFrom) and each.module is not None:
                names = each.names if not isinstance(each.names, cst.ImportStar) else ()
                if origin and module.code_for_node(each.module) == origin:
                    found |= {a.evaluated_name for a in names if a.asname is None}
            elif isinstance(each, cst.Import) and not origin:
                found |= {a.evaluated_name for a in each.names if a.asname is None}
    return found


def _is_import(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and any(
        isinstance(each, (cst.Import, cst.ImportFrom)) for each in line.body
    )


Rewrite = Callable[[Site], Draft]


def statements(text: str) -> list[Statement]:
    """Statements from their text."""
    return list(cst.parse_module(text).body)
