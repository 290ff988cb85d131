"""CF1xx: misuse of torch.compile: where it is called, and of what."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.static import changes, compiled
from torchproof.checking.static.compiled import (
    DDP,
    FSDP,
    SHARD,
    Compilation,
    Compiled,
    is_true,
    name_of,
    wrapped_before,
)
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Definition, Source, walk

# Exceptions that show whether torch.compile exists, not whether compiling works.
_PROBES = ("ImportError", "ModuleNotFoundError", "AttributeError", "NameError")
_CLOCKS = words(
    "time.time time.perf_counter time.monotonic timeit.default_timer"
    " time.perf_counter_ns time.time_ns time.process_time"
)
_ALARMS = ("signal.alarm", "signal.setitimer")


def sites(source: Source, *words: str) -> Iterator[tuple[Compiled, Compilation]]:
    """Each torch.compile of a file that contains one of the words."""
    file = compiled.of(source)
    if any(word in source.text for word in words):
        yield from ((site, file) for site in file.sites)


class LazyTry(SourceRule):
    """try/except around torch.compile does not catch compile errors.

    ## Why
    torch.compile only wraps the model. Compilation happens at the first call with
    inputs, and its errors are raised there.

    ## Bad
        try:
            model = torch.compile(model)
        except Exception:
            pass                      # never reached

    ## Good
        eager, model = model, torch.compile(model)
        try:
            model(example)            # compiles here
        except Exception:
            model = eager

    ## Fix safety
    The program makes one more call than before; use inputs that change no state.
    torchproof.compile falls back to eager by itself.
    """

    code = "CF101"
    source_text = "the except around `{at.expression}` catches no compile error"
    cause_text = (
        "torch.compile only wraps: compiling happens at the first call, and what goes"
        " wrong is raised there"
    )
    advice_text = "make the first call, with real inputs, inside this try"

    def read(self, source: Source) -> Iterator[Match]:
        for site, file in sites(source, "except"):
            block = _enclosing_try(site, file)
            if block is not None and not _mentions(file, site, block.body):
                yield Match(site.node)


def _enclosing_try(site: Compiled, file: Compilation) -> ast.Try | None:
    """The try around the call, if its except handles compile errors."""
    parents = file.source.parents
    at: ast.AST = site.node
    while (up := parents.get(at)) is not None:
        if isinstance(up, Definition | ast.Lambda | ast.With):
            return None
        if isinstance(up, ast.Try) and up.handlers and at in up.body:
            goes_on = any(_goes_on(handler, file.source) for handler in up.handlers)
            return up if goes_on else None
        at = up
    return None


def _goes_on(handler: ast.ExceptHandler, source: Source) -> bool:
    """Whether the handler continues without compiling, instead of raising again."""
    kind = handler.type
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind] if kind else []
    names = {source.dotted(each) or "" for each in kinds}
    probes = bool(names) and names <= set(_PROBES)
    return not probes and not any(isinstance(n, ast.Raise) for n in walk(handler))


def _mentions(file: Compilation, site: Compiled, body: Sequence[ast.stmt]) -> bool:
    """Whether the statements use the result, and so may call it."""
    target = file.name(site)
    parent = file.source.parents.get(site.node)
    if isinstance(parent, ast.Call):  # torch.compile(f)(x), or passed to a function
        return True
    name = target and file.source.dotted(target)
    if not name:
        return not isinstance(parent, ast.Return | ast.Expr | ast.Assign)
    end = (site.node.end_lineno or site.node.lineno, site.node.end_col_offset or 0)
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and node is not site.subject
        and file.source.dotted(node) == name
        and (node.lineno, node.col_offset) >= end
        for statement in body
        for node in walk(statement)
    )


class TimedNothing(SourceRule):
    """A timer or an alarm covers torch.compile itself.

    ## Why
    torch.compile only wraps the model. The time it takes is not the compile time, and
    an alarm that ends before the first call stops nothing.

    ## Bad
        start = time.perf_counter()
        model = torch.compile(model)
        print("compiled in", time.perf_counter() - start)

    ## Good
        model = torch.compile(model)
        start = time.perf_counter()
        model(example)
        print("first call took", time.perf_counter() - start)

    ## Fix safety
    Only the measurement changes. torchproof.compile has a deadline, and `torchproof
    bench` measures.
    """

    code = "CF111"
    reference = torch_pages.PROFILING
    source_text = "`{clock}` around `{at.expression}` {does} no compilation"
    cause_text = (
        "torch.compile only wraps: compiling happens at the first call, which is"
        " outside of what is limited or timed here"
    )
    advice_text = "make the first call, with real inputs, before the second `{clock}`"

    def read(self, source: Source) -> Iterator[Match]:
        for site, file in sites(source, "time", "signal"):
            clock = self._clock_around(site, file)
            if clock is not None:
                does = "stops" if clock in _ALARMS else "times"
                yield Match(site.node, words={"clock": clock, "does": does})

    def _clock_around(self, site: Compiled, file: Compilation) -> str | None:
        statement, block = _statement(site.node, file.source)
        if statement is None:
            return None
        index = block.index(statement)
        clocks = [_clock(each, file.source) for each in block]
        started = next((clock for clock in reversed(clocks[:index]) if clock), None)
        if started is None:
            return None
        for place, later in enumerate(block[index + 1 :], index + 1):
            if clocks[place] == started:
                between = block[index + 1 : place + 1]
                return None if _mentions(file, site, between) else started
            if not isinstance(later, ast.Assign | ast.Expr):
                return None
        return None


def _statement(node: ast.AST, source: Source) -> tuple[ast.stmt | None, list[ast.stmt]]:
    """The simple statement that contains a node, and the block of that statement."""
    at = next(each for each in source.above(node) if isinstance(each, ast.stmt))
    for name in ("body", "orelse", "finalbody"):
        block = getattr(source.parents.get(at), name, [])
        if isinstance(at, ast.Assign | ast.Expr) and at in block:
            return at, block
    return None, []


def _clock(statement: ast.stmt, source: Source) -> str | None:
    """The clock or alarm that a simple statement calls; None if it calls none."""
    if not isinstance(statement, ast.Assign | ast.Expr):
        return None
    calls = (each for each in walk(statement) if isinstance(each, ast.Call))
    names = (source.dotted(call.func) for call in calls)
    return next((n for n in names if n in _CLOCKS or n in _ALARMS), None)


class PrefixedCheckpoint(SourceRule):
    """The state_dict of a compiled module is saved, with `_orig_mod.` in its keys.

    ## Why
    torch.compile(module) returns a module that holds the original as _orig_mod. An
    uncompiled model does not find its keys in such a checkpoint. With strict=False it
    silently keeps its random weights.

    ## Bad
        model = torch.compile(model)
        torch.save(model.state_dict(), path)

    ## Good
        torch.save(model._orig_mod.state_dict(), path)

    ## Fix safety
    Existing checkpoints keep their prefix: strip it when you load them. After
    model.compile(), in place, names have no prefix.
    """

    code = "CF112"
    reference = torch_pages.MODULES

    source_text = "`{at.expression}` saves keys that begin with `_orig_mod.`"
    cause_text = (
        "a compiled module holds the original under the name _orig_mod, so a plain"
        " model finds none of its keys in what is saved"
    )
    advice_text = "save the state_dict of the original model"

    def read(self, source: Source) -> Iterator[Match]:
        file = compiled.of(source)
        if not file.sites or "state_dict" not in source.text:
            return
        if "_orig_mod" in source.text:  # the program handles the prefix
            return
        for saving in source.calls("torch.save"):
            for node in walk(saving):
                called = node.func if isinstance(node, ast.Call) else None
                if not isinstance(called, ast.Attribute) or called.attr != "state_dict":
                    continue
                site = file.of(called.value)
                if site is not None and site.subject is not None:
                    own = f"{changes.code(source, called.value)}._orig_mod"
                    title = f"save {own}.state_dict(), the original's"
                    edit = changes.edit(title, source, {called.value: own})
                    sure = source.is_sure(site.node)  # else it may be the original
                    yield Match(node, remedy=edit if sure else None)


class AfterParallel(SourceRule):
    """torch.compile gets a wrapped model that it cannot compile as asked.

    ## Why
    DDP's own forward breaks the graph, so fullgraph=True raises an error if DDP is
    inside. After FSDP, the hooks that gather parameters break the graph at each sharded
    module inside; without use_orig_params=True nothing is compiled. Compiling after DDP
    without fullgraph is no finding: in both orders torch splits the graphs at the
    gradient buckets.

    ## Bad
        model = torch.compile(FSDP(model))

    ## Good
        for block in model.blocks:
            block.compile()
            fully_shard(block)
        fully_shard(model)

    ## Fix safety
    The values are the same up to rounding. With DDP, fullgraph=True is possible where
    the module is compiled first and wrapped then.
    """

    code = "CF102"
    reference = torch_pages.PARALLEL
    advice_text = "compile each block before sharding it: block.compile()"

    def read(self, source: Source) -> Iterator[Match]:
        if not any(word in source.text for word in (*DDP, *FSDP, *SHARD)):
            return
        file = compiled.of(source)
        for site in file.sites:
            wrapping = wrapped_before(site, file)
            if wrapping is not None:
                yield from _wrapped(wrapping, site, source)


def _wrapped(wrapping: ast.Call, site: Compiled, source: Source) -> Iterator[Match]:
    """What fails when compiling after DDP or FSDP."""
    name, code = name_of(wrapping, source), source.quote(site.node)
    arguments = {k.arg: k.value for k in wrapping.keywords if k.arg}
    whole = is_true(site.arguments.get("fullgraph"))
    if name in DDP:
        if whole and isinstance(site.node, ast.Call):
            title = "remove fullgraph=True"
            yield Match(
                site.node,
                f"{code} raises at its first call: DDP's forward breaks the graph",
                "DDP's forward calls code that Dynamo does not trace, and"
                " fullgraph=True forbids that",
                severity="high",
                remedy=changes.without_keyword(title, source, site.node, "fullgraph"),
            )
        return
    if name in FSDP and not is_true(arguments.get("use_orig_params")):
        yield Match(
            site.node,
            f"{code} compiles nothing: FSDP has no use_orig_params=True",
            "Dynamo traces no FSDP module that holds flattened parameters, and the"
            " whole model runs uncompiled",
            severity="high",
        )
        return
    raises = "raises: FSDP's hooks break the graph"
    breaks = "breaks the graph at the hooks of sharded modules"
    yield Match(
        site.node,
        f"{code} {raises if whole else breaks}",
        f"{name} gathers parameters in hooks, and Dynamo does not trace them",
        severity="high" if whole else "medium",
    )
