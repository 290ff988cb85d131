"""Parses the text of a target, and loads its factory in the child process."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torchproof.records import Frame, Keywords, UserError, cells, located, shown, whose
from torchproof.records.option import options_of
from torchproof.records.options import WRAPS
from torchproof.targets.search_path import search_first
from torchproof.targets.workloads import WORKLOADS

Kind = Literal["workload", "factory", "live", "script", "trace", "source"]
# What can wrap the model of a factory on several ranks.
# What a factory's file may define, as documented: fields of `Loaded`.
HOOKS = ("before_call", "call_work", "call_weight", "wrap", "tensor_parallel_plan")


@dataclass(frozen=True)
class Target:
    """A target as named by the user.

    `where` is a path, a module or a workload; of a live object, the folder that it was
    written into.
    """

    text: str
    kind: Kind
    where: str
    factory: str = "make"
    arguments: tuple[str, ...] = ()
    file: str = ""  # with the code of a live object

    @property
    def form(self) -> str:
        """The kind in words, after `is a`."""
        return "live object" if self.kind == "live" else self.kind

    @property
    def can_run_again(self) -> bool:
        """Whether each run gets a fresh target, so that many runs are possible."""
        return self.kind in ("workload", "factory", "live")

    @property
    def name(self) -> str:
        """A short name for the run's id."""
        stem = self.where if self.kind == "workload" else Path(self.where).stem
        if self.kind == "live":
            stem = self.text.partition(":")[2].rpartition(".")[2]
        if self.kind == "source":
            stem = Path(self.where).resolve().name
        if self.kind == "factory" and not self.where.endswith(".py"):
            stem = self.where.rpartition(".")[2]
        return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "target"


def parse(text: str, arguments: Sequence[str] = ()) -> Target:
    """Parses a target from the command line; raises `UserError` if it is invalid."""
    target = _parse(text)
    if arguments and target.kind != "script":
        raise UserError(f"{text} is not a script: only scripts take arguments after --")
    return dataclasses.replace(target, arguments=tuple(arguments))


def _parse(text: str) -> Target:
    scheme, _, rest = text.partition(":")
    if scheme == "workload":
        if rest not in WORKLOADS:
            names = ", ".join(sorted(WORKLOADS))
            raise UserError(f"no workload named {rest!r}: choose one of {names}")
        return Target(text, "workload", rest)
    if scheme == "live":
        raise UserError(
            f"{text} was an object of a Python process: pass it to a function such as"
            " torchproof.check(model, calls) there"
        )
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
            f"no target {text!r}: it is neither a file nor one of the forms listed by"
            " torchproof check --help"
        )
    if path.suffix != ".py":
        raise UserError(f"{text} is not a Python script: its name must end in .py")
    return Target(text, "script", text)


def _factory(text: str, where: str, factory: str) -> Target:
    if where.endswith(".py") or "/" in where:
        if not os.path.isfile(where):
            raise UserError(f"no file {where}")
        if not where.endswith(".py"):
            raise UserError(f"{where} is not a Python file: its name must end in .py")
    elif not all(part.isidentifier() for part in where.split(".")):
        raise UserError(f"{where!r} is neither a file nor a module name")
    return Target(text, "factory", where, factory)


def assert_size(target: Target, size: str | None) -> None:
    """Raises `UserError` unless the target is a workload that has this size."""
    if size is None:
        return
    if target.kind != "workload":
        raise UserError(f"{target.text} is not a workload: only workloads take --size")
    sizes = WORKLOADS[target.where].sizes
    if size not in sizes:
        names = ", ".join(sizes)
        raise UserError(f"{target.text} has no size {size!r}: choose one of {names}")


def assert_as_written(target: Target, *fitting: str, records: Sequence[object]) -> None:
    """Raises `UserError` if a script has other options than those that fit it.

    It decides itself what it compiles, with which data, and where.
    """
    for record in records if target.kind == "script" else ():
        for each in options_of(type(record)):
            is_set = getattr(record, each.key) != each.default
            if is_set and each.key not in fitting:
                raise UserError(
                    f"{target.text} is a script and runs as it is written:"
                    f" {each.flag} is for workloads and factories"
                )


def own_file(target: Target) -> Path | None:
    """The file of a target, or a cell, found without importing it."""
    if target.kind == "workload":
        return located(WORKLOADS[target.where].module)
    if target.kind == "live":
        return Path(target.file) if target.file else None
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
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            return {parameter.arg for parameter in every}
    return set()


@dataclass(frozen=True)
class Loaded:
    """What a factory returned: the function, its calls, and the module's hooks."""

    fn: Callable[..., Any]
    calls: list[Any]
    before_call: Callable[[Any, int], None] | None
    place: Frame
    # The amount of work of a call and its unit, such as (4096, "tokens").
    call_work: Callable[[Any], tuple[float, str]] | None = None
    # How often a call is made, relative to the others; None: all equally often.
    call_weight: Callable[[Any], float] | None = None
    # Makes a text model of `fn`.
    served: Callable[[Any], Any] | None = None
    # What wraps the model on several ranks: one of `WRAPS`.
    wrap: str | None = None
    # Which layers tensor parallelism divides; None: the model knows.
    tensor_parallel_plan: Any = None


def is_text_model(value: Any) -> bool:
    """Whether an object serves text: see `text_models.TextModel`."""
    methods = ("allocate", "prefill", "decode")
    return all(callable(getattr(value, name, None)) for name in methods)


def load(
    target: Target,
    arguments: Keywords | None = None,
    *,
    text_models: bool = False,
) -> Loaded:
    """Calls the factory. The caller must seed the random generators first.

    With `text_models`, the factory may return a model without any calls.
    """
    module = _module(target)
    factory = getattr(module, target.factory, None)
    if not callable(factory):
        named = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        hint = f" (it defines {', '.join(named[:6])})" if named else ""
        raise UserError(f"{target.where} has no factory {target.factory!r}{hint}")
    arguments = arguments or {}
    _assert_takes(factory, arguments, target)
    if target.kind == "workload":
        arguments = {**WORKLOADS[target.where].arguments, **arguments}
    try:
        answer = factory(**arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise raised(f"the factory {target.factory} failed", error) from error
    if text_models and not isinstance(answer, tuple):
        answer = answer, ()
    fn, calls = _checked(answer, target, text_models=text_models)
    hooks = {name: getattr(module, name, None) for name in HOOKS}
    if target.kind == "workload":
        hooks["call_work"] = WORKLOADS[target.where].call_work
        hooks["served"] = getattr(module, "served", None)
    hooks["wrap"] = _wrap_of(module, target)
    return Loaded(fn, calls, place=_place(factory, target), **hooks)


def _wrap_of(module: ModuleType, target: Target) -> str | None:
    wrap = getattr(module, "wrap", None)
    if wrap in (None, *WRAPS) or callable(wrap):  # a function of the file's own
        return wrap if isinstance(wrap, str) else None
    raise UserError(
        f"{target.where} has wrap = {wrap!r}: it must be one of {', '.join(WRAPS)}"
    )


def raised(what: str, error: BaseException, hint: str = "") -> UserError:
    """An error of the target's own code, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if whose(f.filename) != "torchproof"]
    own = [f for f in outside if whose(f.filename) == "user"]
    at = f" (at {_place_of(own[-1])})" if own else ""
    lines = [
        "Traceback (most recent call last):\n",
        *traceback.format_list(outside),
        *traceback.format_exception_only(error),
    ]
    reason = f"{type(error).__name__}: {error}"
    return UserError(f"{what}: {reason}{at}{hint}", details="".join(lines).rstrip())


def _place_of(frame: traceback.FrameSummary) -> str:
    return cells.place(shown(frame.filename), frame.lineno)


def _assert_takes(
    factory: Callable[..., Any], arguments: Keywords, target: Target
) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # a builtin without a signature
        return
    names = {p.name for p in parameters}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in arguments:
        if name not in names and not open_ended:
            raise UserError(
                f"a sweep over {name} needs a factory with the keyword {name!r}:"
                f" {target.where}:{target.factory} must be"
                f" def {target.factory}({name}=...)"
            )


def _checked(
    answer: Any, target: Target, *, text_models: bool
) -> tuple[Callable[..., Any], list[Any]]:
    what = f"{target.where}:{target.factory}"
    if is_text_model(answer):
        raise UserError(
            f"{what} returns a text model without calls, which only loadtest serves,"
            " with --output-tokens"
        )
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise UserError(f"{what} must return (fn, calls), not {type(answer).__name__}")
    fn, calls = answer
    if not callable(fn) and not (text_models and is_text_model(fn)):
        raise UserError(
            f"{what} returned a {type(fn).__name__} as fn, which is not callable"
        )
    if not isinstance(calls, (list, tuple)):
        raise UserError(
            f"{what} returned calls as {type(calls).__name__}, not as a list"
        )
    if not calls and not text_models:
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
    path, folder = Path(target.where).resolve(), Path.cwd()
    earlier = _loaded_earlier(path)
    try:
        if not target.where.endswith(".py"):
            search_first(folder)
            return importlib.import_module(target.where)
        return _executed(path)
    except (Exception, SystemExit) as error:
        # A file may register something with torch that it can only register once.
        if earlier is not None:
            return earlier
        hint = _found_in(folder, error, target)
        raise raised(f"importing {target.where} failed", error, hint) from error


def _found_in(folder: Path, error: BaseException, target: Target) -> str:
    """What to do about a module that only the working directory contains."""
    name = getattr(error, "name", None)
    if not isinstance(error, ModuleNotFoundError) or not name:
        return ""
    searched = any(os.path.realpath(entry) == str(folder) for entry in sys.path)
    is_there = (folder / f"{name}.py").is_file() or (folder / name).is_dir()
    if searched or not is_there:
        return ""
    return (
        f" ({name} is in the working directory, which python {target.where} does not"
        " search: set PYTHONPATH=.)"
    )


def _executed(path: Path) -> ModuleType:
    """Runs the file again, as a module of its name or of an unused name."""
    search_first(path.parent)
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


def _loaded_earlier(path: Path) -> ModuleType | None:
    """The module of a file that this process has already run."""
    for name in (path.stem, f"target_{path.stem}"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None) == str(path):
            return module
    return None


def _place(factory: Callable[..., Any], target: Target) -> Frame:
    """Where the factory is defined; line 1 of its file if it is not a function."""
    if isinstance(factory, functools.partial):
        factory = factory.func
    code = getattr(inspect.unwrap(factory), "__code__", None)
    if code is None:
        return Frame(str(Path(target.where).absolute()), 1, target.factory)
    return Frame(code.co_filename, code.co_firstlineno, code.co_name)
