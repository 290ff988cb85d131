"""Settings that have no effect, do not exist, or hide errors."""

from __future__ import annotations

import ast
import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.static import bindings, changes, compiled
from torchproof.checking.static.compiled import Compiled, is_true, literal
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Definition, Source
from torchproof.records import Remedy

# torch reads these once, during `import torch`.
AT_IMPORT = ("TORCH_LOGS", "TORCH_TRACE")
# torch reads these once, at the first torch.compile or import of torch._dynamo. It
# reads others, such as TORCHINDUCTOR_CACHE_DIR, each time it needs them.
AT_COMPILE = words(
    "TORCH_COMPILE_DISABLE TORCHDYNAMO_SUPPRESS_ERRORS TORCHDYNAMO_VERBOSE"
    " TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_COMPILE_THREADS"
    " TORCHINDUCTOR_FX_GRAPH_CACHE"
)
# The settings that have the values of these variables.
SETTINGS = {
    "TORCHDYNAMO_VERBOSE": "torch._dynamo.config.verbose",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "torch._inductor.config.max_autotune",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "torch._inductor.config.fx_graph_cache",
}
# Logs that set_logs switches on as TORCH_LOGS does.
LOGS = words("graph_breaks recompiles guards output_code graph_code perf_hints")
_STARTS_OTHERS = ("subprocess", "multiprocessing", "mp.spawn", "os.exec", "ray.init")


@functools.cache
def settings() -> Mapping[str, frozenset[str]]:
    """The settings of torch 2.11, 2.13 and 2.15 together, by module."""
    text = Path(__file__).with_name("settings.json").read_text(encoding="utf-8")
    return {module: frozenset(names) for module, names in json.loads(text).items()}


class LateEnvironment(SourceRule):
    """An environment variable is set after torch has read it.

    ## Why
    Torch reads TORCH_LOGS and TORCH_TRACE while it is imported, and the switches of
    Dynamo and Inductor at the first torch.compile. Later assignments have no effect,
    and there is no warning.

    ## Bad
        import torch
        os.environ["TORCH_LOGS"] = "recompiles"

    ## Good
        import torch
        torch._logging.set_logs(recompiles=True)

    ## Fix safety
    The setting takes effect: logs get longer, or compilation is switched off. What is
    set in the shell is early enough; torch.compiler.set_stance("force_eager") switches
    compilation off at any time.
    """

    code = "CF106"
    reference = torch_pages.LOGS
    source_text = "{name} is set too late and has no effect"
    cause_text = "torch reads {name} once, at {when}, which has run by then"
    advice_text = "set {name} in the shell, before the program starts"

    def read(self, source: Source) -> Iterator[Match]:
        if "environ" not in source.text or "TORCH" not in source.text:
            return
        if any(word in source.text for word in _STARTS_OTHERS):
            return  # the variable may be for a process that starts later
        for node in source.nodes:
            for name in _set_variables(node, source):
                when = self._when(name, node, source)
                if when is not None:
                    assert isinstance(node, ast.stmt | ast.expr)
                    words = {"name": name, "when": when}
                    yield Match(
                        node, words=words, remedy=_in_program(name, node, source)
                    )

    def _when(self, name: str, node: ast.AST, source: Source) -> str | None:
        if name in AT_IMPORT:
            imported = _imports(source, node, ("torch",))
            return "`import torch`" if imported else None
        if name in AT_COMPILE:
            if _imports(source, node, ("torch._dynamo", "torch._inductor")):
                return "`import torch._dynamo`"
            return "the first torch.compile" if _compiled_before(node, source) else None
        return None


def _in_program(name: str, node: ast.AST, source: Source) -> Remedy | None:
    """Sets what the variable stands for, where the program sets the variable."""
    if not isinstance(node, ast.Assign) or source.names.get("torch") != "torch":
        return None
    value = literal(node.value) or ""
    line = None
    if name in SETTINGS and value in ("0", "1"):
        line = f"{SETTINGS[name]} = {value == '1'}"
    if name == "TORCH_LOGS" and value and set(value.split(",")) <= set(LOGS):
        given = ", ".join(f"{each}=True" for each in value.split(","))
        line = f"torch._logging.set_logs({given})"
    title = f"write `{line}` instead"
    return changes.edit(title, source, {node: line}) if line else None


def _set_variables(node: ast.AST, source: Source) -> Iterator[str]:
    """The variables that a statement or call sets in this process."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value, source):
                yield literal(target.slice) or ""
    if not isinstance(node, ast.Call):
        return
    dotted = source.dotted(node.func) or ""
    first = node.args[0] if node.args else None
    if dotted in ("os.environ.setdefault", "os.putenv"):
        yield literal(first) or ""
    if dotted == "os.environ.update" and isinstance(first, ast.Dict):
        yield from (literal(key) or "" for key in first.keys)


def _is_environ(node: ast.expr, source: Source) -> bool:
    return source.dotted(node) in ("os.environ", "environ")


def _imports(source: Source, node: ast.AST, modules: tuple[str, ...]) -> bool:
    """Whether the file imports a module before a node runs."""
    scope = _function(source, node)
    line = getattr(node, "lineno", 0)
    for each in source.nodes:
        names: list[str] = []
        if isinstance(each, ast.Import):
            names = [alias.name for alias in each.names]
        elif isinstance(each, ast.ImportFrom) and not each.level:
            names = [each.module or ""]
        if not any(n == m or n.startswith(f"{m}.") for n in names for m in modules):
            continue
        where = _function(source, each)
        if where is scope and each.lineno < line and _is_plain(source, each):  # type: ignore[attr-defined]
            return True
        if where is None and scope is not None and _is_plain(source, each):
            return True  # a function runs after the imports of its module
    return False


def _function(source: Source, node: ast.AST) -> ast.AST | None:
    for at in source.above(node):
        if isinstance(at, Definition):
            return at
    return None


def _is_plain(source: Source, node: ast.AST) -> bool:
    """Whether a statement is directly in the module or function, under no condition."""
    return isinstance(source.parents.get(node), ast.Module | Definition)


def _compiled_before(node: ast.AST, source: Source) -> bool:
    file = compiled.of(source)
    scope, line = _function(source, node), getattr(node, "lineno", 0)
    for site in file.sites:
        same = _function(source, site.node) is scope and site.node.lineno < line
        if (
            same
            and site.function is None
            and not source.is_inside(site.node, ast.If, ast.Try)
        ):
            return True
    return False


class UnknownSetting(SourceRule):
    """A setting or option of the compiler does not exist, or has no effect.

    ## Why
    Setting an unknown name raises AttributeError, and an unknown option raises an error
    in torch.compile. A mode is an option of Inductor: other backends ignore it.

    ## Bad
        torch._dynamo.config.cache_dir = "/fast/disk"

    ## Good
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/fast/disk"

    ## Fix safety
    The program failed at that line before. dir(torch._dynamo.config) and
    torch._inductor.list_options() list what there is.
    """

    code = "CF107"
    source_severity = "high"
    source_text = "{module} has no setting {name}: this raises AttributeError"
    cause_text = "torch 2.11, 2.13 and 2.15 have no {name} in {module}"
    advice_text = "{instead}"

    def read(self, source: Source) -> Iterator[Match]:
        if any(module.rpartition(".")[0] in source.text for module in settings()):
            for node in source.nodes:
                for named in (*_assigned(node, source), *_patched(node, source)):
                    if not _has(named.setting, _settings_of(named, source)):
                        yield named.unknown(source)
        for site in compiled.of(source).sites:
            for named in _options(site):
                names = settings()[named.module] | _OPTIONS
                if not _has(named.setting, names):
                    what = f'torch.compile has no option "{named.setting}": this raises'
                    yield replace(named.unknown(source), message=what)
            yield from self._ignored_mode(site, source)

    def _ignored_mode(self, site: Compiled, source: Source) -> Iterator[Match]:
        mode = site.arguments.get("mode")
        if site.backend not in ("eager", "aot_eager") or site.mode in (None, "default"):
            return
        assert mode is not None and isinstance(site.node, ast.Call)
        title = f'remove mode="{site.mode}"'
        yield Match(
            node=mode,
            message=f'mode="{site.mode}" has no effect with backend="{site.backend}"',
            cause="modes are presets of the Inductor backend; others ignore them",
            severity="low",
            remedy=changes.without_keyword(title, source, site.node, "mode"),
            advice='pass backend="inductor"',
        )


class _Named(NamedTuple):
    """A setting that code names; `before` and `after` are the code around the name."""

    node: ast.expr | ast.keyword
    module: str
    setting: str
    by: ast.expr  # the expression that contains the module
    before: str = ""
    after: str = ""

    def unknown(self, source: Source) -> Match:
        """A setting that does not exist, with the one that is probably meant."""
        known = sorted(settings()[self.module])
        similar = difflib.get_close_matches(self.setting, known, 1, 0.8)
        other = _RENAMED.get((self.module, self.setting)) or "".join(similar)
        remedy = None
        if other and not ("." in other and isinstance(self.node, ast.keyword)):
            new: dict[changes.Node, str] = {
                self.node: f"{self.before}{other}{self.after}"
            }
            title = f"set {other}, which exists"
            remedy = changes.edit(title, source, new, tier="suggested")
        remove = f"remove it: dir({self.module}) lists the settings"
        words = {
            "module": self.module,
            "name": self.setting,
            "instead": _INSTEAD.get(self.setting, remove),
        }
        node = self.node
        place = node.value if isinstance(node, ast.keyword) else node
        return Match(place, words=words, remedy=remedy)


def _assigned(node: ast.AST, source: Source) -> Iterator[_Named]:
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        dotted = source.dotted(target) or ""
        if not dotted.startswith("torch.") or not _is_imported(target, source):
            continue
        for module in settings():
            setting = dotted.removeprefix(f"{module}.")
            if setting != dotted:
                own = changes.code(source, target).removesuffix(setting)
                yield _Named(target, module, setting, target, own)


def _patched(node: ast.AST, source: Source) -> Iterator[_Named]:
    """Reads `config.patch(...)`, with names as keywords, in a dict or a string."""
    if not isinstance(node, ast.Call):
        return
    module, is_patch, _ = (source.dotted(node.func) or "").rpartition(".patch")
    if not is_patch or module not in settings() or not _is_imported(node.func, source):
        return
    for each in node.keywords:
        if each.arg:
            value = f"={changes.code(source, each.value)}"
            yield _Named(each, module, each.arg, node.func, "", value)
    first = node.args[0] if node.args else None
    for key in first.keys if isinstance(first, ast.Dict) else [first]:
        if key is not None and (name := literal(key)):
            yield _Named(key, module, name, node.func, '"', '"')


def _options(site: Compiled) -> Iterator[_Named]:
    options = site.arguments.get("options")
    if site.backend == "inductor" and isinstance(options, ast.Dict):
        for key in filter(None, options.keys):
            if name := literal(key):
                yield _Named(key, "torch._inductor.config", name, key, '"', '"')


# Options of torch.compile that are not settings of torch._inductor.config.
_OPTIONS = {"guard_filter_fn", "trace.enabled", "trace.graph_diagram"}
_RENAMED = {
    ("torch._inductor.config", "cudagraphs"): "triton.cudagraphs",
    ("torch._dynamo.config", "cache_limit"): "recompile_limit",
    ("torch._dynamo.config", "max_recompiles"): "recompile_limit",
}
_INSTEAD = {
    "cache_dir": "set the environment variable TORCHINDUCTOR_CACHE_DIR",
    "log_level": "use torch._logging.set_logs(dynamo=...)",
    "output_code": "use torch._logging.set_logs(output_code=True)",
}


def _is_imported(node: ast.expr, source: Source) -> bool:
    """Whether the first part of a dotted name is an import and not a variable."""
    while isinstance(node, ast.Attribute):
        node = node.value
    if not isinstance(node, ast.Name) or bindings.of(source).owner(node) is not None:
        return False
    inside = _function(source, node)
    for each in source.nodes:
        if isinstance(each, ast.Import | ast.ImportFrom):
            imported = {a.asname or a.name.partition(".")[0] for a in each.names}
            if node.id in imported and _function(source, each) in (None, inside):
                return True
    return False


def _settings_of(named: _Named, source: Source) -> frozenset[str]:
    """The settings of the module; of all modules if the source uses a short name."""
    if source.text_of(named.by).startswith("torch."):
        return settings()[named.module]
    return frozenset().union(*settings().values())


def _has(setting: str, names: frozenset[str]) -> bool:
    """Whether a name is a setting, a group of settings, or private."""
    if setting in names or setting.startswith("_"):
        return True
    return any(name.startswith(f"{setting}.") for name in names)


class SilentErrors(SourceRule):
    """torch._dynamo.config.suppress_errors hides compile errors.

    ## Why
    Every compile error becomes a log line, and the function runs uncompiled from then
    on.

    ## Bad
        torch._dynamo.config.suppress_errors = True

    ## Good
        model = torchproof.compile(model)    # falls back, and reports why

    ## Fix safety
    Without it, errors are raised again: fix them before you deploy. torchproof.compile
    falls back to eager by itself and reports it.
    """

    code = "CF113"
    source_text = "compile errors are hidden, and the functions run uncompiled"
    cause_text = (
        "suppress_errors turns every error of compiling into a log line and runs the"
        " function uncompiled"
    )
    advice_text = "remove it, and fix what `torchproof check` then reports"

    def read(self, source: Source) -> Iterator[Match]:
        if "suppress_errors" in source.text:
            for node in source.of(ast.Assign):
                names = map(source.dotted, node.targets)
                if "torch._dynamo.config.suppress_errors" in names:
                    yield from [Match(node)] * is_true(node.value)
