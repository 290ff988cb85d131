"""What is run: reads the target's text, and loads a factory in the child process."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torchproof.records import Frame, UserError, located
from torchproof.targets.workloads import WORKLOADS

Kind = Literal["workload", "factory", "script", "trace", "source"]


@dataclass(frozen=True)
class Target:
    """A target as the user named it. `where` is a path, a module or a workload."""

    text: str
    kind: Kind
    where: str
    factory: str = "make"
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A short name for the run's id."""
        stem = self.where if self.kind == "workload" else Path(self.where).stem
        if self.kind == "source":
            stem = Path(self.where).resolve().name
        if self.kind == "factory" and not self.where.endswith(".py"):
            stem = self.where.rpartition(".")[2]
        return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "target"


def parse(text: str, arguments: Sequence[str] = ()) -> Target:
    """A target from the command line, or a `UserError` that says what is wrong."""
    target = _parse(text)
    if arguments and target.kind != "script":
        raise UserError(f"arguments after -- go to a script, which {text} is not")
    return dataclasses.replace(target, arguments=tuple(arguments))


def _parse(text: str) -> Target:
    scheme, _, rest = text.partition(":")
    if scheme == "workload":
        if rest not in WORKLOADS:
            known = ", ".join(sorted(WORKLOADS))
            raise UserError(f"no workload named {rest!r}: choose one of {known}")
        return Target(text, "workload", rest)
    if scheme == "trace":
        if not os.path.isdir(rest):
            raise UserError(
                f"no trace folder {rest!r}: record one with TORCH_TRACE={rest or 'DIR'}"
            )
        return Target(text, "trace", rest)
    where, colon, factory = text.rpartition(":")
    if colon and factory.isidentifier():
        return _factory(text, where, factory)
    path = Path(text)
    if os.path.isdir(path):
        return Target(text, "source", text)
    if not os.path.isfile(path):
        raise UserError(
            f"no target {text!r}: neither a file nor one of the forms that"
            " torchproof check --help lists"
        )
    if path.suffix != ".py":
        raise UserError(f"{text} is no Python script")
    return Target(text, "script", text)


def _factory(text: str, where: str, factory: str) -> Target:
    if where.endswith(".py") or "/" in where:
        if not os.path.isfile(where):
            raise UserError(f"no file {where}")
        if not where.endswith(".py"):
            raise UserError(f"{where} is no Python file")
    elif not all(part.isidentifier() for part in where.split(".")):
        raise UserError(f"{where!r} is neither a file nor a module name")
    return Target(text, "factory", where, factory)


def assert_size(target: Target, size: str | None) -> None:
    """A size is a workload's, and one that it has."""
    if size is None:
        return
    if target.kind != "workload":
        raise UserError(f"--size is for workloads, which {target.text} is not")
    sizes = WORKLOADS[target.where].sizes
    if size not in sizes:
        known = ", ".join(sizes)
        raise UserError(f"{target.text} has no size {size!r}: choose one of {known}")


def own_file(target: Target) -> Path | None:
    """The file that a script, a factory or a workload is in; nothing is imported."""
    if target.kind == "workload":
        return located(WORKLOADS[target.where].module)
    if target.kind == "factory" and not target.where.endswith(".py"):
        return located(target.where)
    return Path(target.where) if target.kind in {"factory", "script"} else None


def keywords(target: Target) -> set[str]:
    """The parameters of the target's factory, read from its source."""
    path = own_file(target)
    if path is None:
        return set()
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == target.factory:
            given = node.args
            return {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    return set()


@dataclass(frozen=True)
class Loaded:
    """A factory's answer: what is called, with which calls, and its hook."""

    fn: Callable[..., Any]
    calls: list[Any]
    before_call: Callable[[Any, int], None] | None
    place: Frame
    work: Callable[[Any], tuple[float, str]] | None = None  # of a call: 4096, "tokens"


def load(target: Target, arguments: Mapping[str, Any] | None = None) -> Loaded:
    """Calls the factory. The caller has seeded the random generators."""
    module = _module(target)
    factory = getattr(module, target.factory, None)
    if not callable(factory):
        named = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        hint = f" (it defines {', '.join(named[:6])})" if named else ""
        raise UserError(f"{target.where} has no factory {target.factory!r}{hint}")
    arguments = arguments or {}
    _assert_takes(factory, arguments, target)
    try:
        answer = factory(**arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"the factory {target.factory} failed: {type(error).__name__}: {error}"
        ) from error
    fn, calls = _checked(answer, target)
    return Loaded(
        fn,
        calls,
        before_call=getattr(module, "before_call", None),
        place=_place(factory, target),
        work=getattr(module, "work", None),
    )


def _assert_takes(
    factory: Callable[..., Any], arguments: Mapping[str, Any], target: Target
) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # a builtin without a signature
        return
    known = {p.name for p in parameters}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in arguments:
        if name not in known and not open_ended:
            raise UserError(
                f"{target.where}:{target.factory} takes no keyword {name!r}, which a"
                f" sweep of it needs: def {target.factory}({name}=...)"
            )


def _checked(answer: Any, target: Target) -> tuple[Callable[..., Any], list[Any]]:
    what = f"{target.where}:{target.factory}"
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise UserError(f"{what} must return (fn, calls), not {type(answer).__name__}")
    fn, calls = answer
    if not callable(fn):
        raise UserError(
            f"{what} returned a {type(fn).__name__} as fn, which cannot be called"
        )
    if not isinstance(calls, (list, tuple)):
        raise UserError(
            f"{what} returned calls as {type(calls).__name__}, not as a list"
        )
    if not calls:
        raise UserError(f"{what} returned no calls: there is nothing to run")
    for index, call in enumerate(calls):
        if not isinstance(call, (tuple, dict)):
            raise UserError(
                f"{what}: call {index} is a {type(call).__name__}; it must be a tuple"
                " of positional arguments or a dict of keyword arguments"
            )
    return fn, list(calls)


def _module(target: Target) -> ModuleType:
    if target.kind == "workload":
        return importlib.import_module(WORKLOADS[target.where].module)
    path = Path(target.where).resolve()
    known = _known(path)
    try:
        if not target.where.endswith(".py"):
            return importlib.import_module(target.where)
        return _executed(path)
    except (Exception, SystemExit) as error:
        # What a file registers with torch, it may be able to register once only.
        if known is not None:
            return known
        raise UserError(
            f"importing {target.where} failed: {type(error).__name__}: {error}"
        ) from error


def _executed(path: Path) -> ModuleType:
    """The file run anew, as a module of its name or one that is not taken."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def _known(path: Path) -> ModuleType | None:
    """The module of a file that this process has run before."""
    for name in (path.stem, f"target_{path.stem}"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None) == str(path):
            return module
    return None


def _place(factory: Callable[..., Any], target: Target) -> Frame:
    """Where the factory is defined; the head of its file if it is no function."""
    if isinstance(factory, functools.partial):
        factory = factory.func
    code = getattr(inspect.unwrap(factory), "__code__", None)
    if code is None:
        return Frame(str(Path(target.where).absolute()), 1, target.factory)
    return Frame(code.co_filename, code.co_firstlineno, code.co_name)
