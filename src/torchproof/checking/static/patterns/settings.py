"""Settings that have no effect, do not exist, or hide what goes wrong."""

from __future__ import annotations

import ast
import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchproof.checking.static import bindings, compiled
from torchproof.checking.static.compiled import Compiled, is_true, literal
from torchproof.checking.static.patterns.pattern import (
    FilePattern,
    PatternMatch,
    shorten,
)
from torchproof.checking.static.source import Definition, Source

# Read once, while `import torch` runs.
AT_IMPORT = ("TORCH_LOGS", "TORCH_TRACE")
# Read once, at the first torch.compile or import of torch._dynamo. Others, as
# TORCHINDUCTOR_CACHE_DIR, are read whenever they are needed.
AT_COMPILE = (
    *("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS", "TORCHDYNAMO_VERBOSE"),
    *("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_COMPILE_THREADS"),
    "TORCHINDUCTOR_FX_GRAPH_CACHE",
)
_STARTS_OTHERS = ("subprocess", "multiprocessing", "mp.spawn", "os.exec", "ray.init")


@functools.cache
def settings() -> Mapping[str, frozenset[str]]:
    """The settings of torch 2.11, 2.13 and 2.15 together, by module."""
    text = Path(__file__).with_name("settings.json").read_text(encoding="utf-8")
    return {module: frozenset(names) for module, names in json.loads(text).items()}


class LateEnvironment(FilePattern):
    """An environment variable is set after torch has read it."""

    code = "CF106"

    def read(self, source: Source) -> Iterator[PatternMatch]:
        if "environ" not in source.text or "TORCH" not in source.text:
            return
        if any(word in source.text for word in _STARTS_OTHERS):
            return  # it may be for a process that is yet to start
        for node in source.nodes:
            for name in _set_variables(node, source):
                when = self._when(name, node, source)
                if when is not None:
                    assert isinstance(node, ast.stmt | ast.expr)
                    yield self._match(name, when, node)

    def _when(self, name: str, node: ast.AST, source: Source) -> str | None:
        if name in AT_IMPORT:
            imported = _imports(source, node, ("torch",))
            return "`import torch`" if imported else None
        if name in AT_COMPILE:
            if _imports(source, node, ("torch._dynamo", "torch._inductor")):
                return "`import torch._dynamo`"
            return "the first torch.compile" if _compiled_before(node, source) else None
        return None

    def _match(self, name: str, when: str, node: ast.stmt | ast.expr) -> PatternMatch:
        api = {
            "TORCH_LOGS": "torch._logging.set_logs(...)",
            "TORCH_COMPILE_DISABLE": 'torch.compiler.set_stance("force_eager")',
        }.get(name)
        instead = f", or use {api} from inside the program" if api else ""
        return PatternMatch(
            node,
            f"{name} is set too late, and has no effect",
            f"torch reads {name} once, at {when}, which has run by then",
            f"set it before that, best in the shell: {name}=... python ...{instead}",
        )


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
    """Whether a module is imported before a node runs, as far as the file shows."""
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
            return True  # a function runs after its module's own imports
    return False


def _function(source: Source, node: ast.AST) -> ast.AST | None:
    at: ast.AST | None = node
    while (at := source.parents.get(at)) is not None:  # type: ignore[arg-type]
        if isinstance(at, Definition):
            return at
    return None


def _is_plain(source: Source, node: ast.AST) -> bool:
    """Under no condition: a statement of the module or of the function itself."""
    return isinstance(source.parents.get(node), ast.Module | Definition)


def _compiled_before(node: ast.AST, source: Source) -> bool:
    file = compiled.of(source)
    scope, line = _function(source, node), getattr(node, "lineno", 0)
    for site in file.sites if file else ():
        same = _function(source, site.node) is scope and site.node.lineno < line
        if same and site.function is None and not _is_looped(source, site.node):
            return True
    return False


def _is_looped(source: Source, node: ast.AST) -> bool:
    at: ast.AST | None = node
    while (at := source.parents.get(at)) is not None:  # type: ignore[arg-type]
        if isinstance(at, ast.If | ast.Try):
            return True
        if isinstance(at, Definition):
            return False
    return False


class UnknownSetting(FilePattern):
    """A setting of the compiler that torch does not have."""

    code, severity = "CF107", "high"

    def read(self, source: Source) -> Iterator[PatternMatch]:
        if any(module.rpartition(".")[0] in source.text for module in settings()):
            for node in source.nodes:
                yield from self._assigned(node, source)
                yield from self._patched(node, source)
        file = compiled.of(source)
        for site in file.sites if file else ():
            yield from self._options(site, source)
            yield from self._ignored_mode(site, source)

    def _assigned(self, node: ast.AST, source: Source) -> Iterator[PatternMatch]:
        if not isinstance(node, ast.Assign | ast.AugAssign):
            return
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            dotted = source.dotted(target) or ""
            if not dotted.startswith("torch.") or not _is_imported(target, source):
                continue
            for module, names in settings().items():
                setting = dotted.removeprefix(f"{module}.")
                if setting == dotted or _has(
                    setting, _settings_of(target, names, source)
                ):
                    continue
                yield self._match(target, module, setting)

    def _patched(self, node: ast.AST, source: Source) -> Iterator[PatternMatch]:
        """`config.patch(name=value)`, with names as keywords, a dict or a string."""
        if not isinstance(node, ast.Call):
            return
        module = (source.dotted(node.func) or "").removesuffix(".patch")
        names = settings().get(module)
        if names is None or source.dotted(node.func) == module:
            return
        if not _is_imported(node.func, source):
            return
        patched = {k.arg: k.value for k in node.keywords if k.arg}
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Dict):
            patched |= {literal(key) or "": key for key in first.keys if key}
        elif (name := literal(first)) is not None and first is not None:
            patched[name] = first
        names = _settings_of(node.func, names, source)
        for setting, value in patched.items():
            if setting and not _has(setting, names):
                yield self._match(value, module, setting)

    def _options(self, site: Compiled, source: Source) -> Iterator[PatternMatch]:
        options = site.arguments.get("options")
        if site.backend != "inductor" or not isinstance(options, ast.Dict):
            return
        module = "torch._inductor.config"
        for key in options.keys:
            name = literal(key)
            if name and name not in _OPTIONS and not _has(name, settings()[module]):
                assert key is not None
                yield PatternMatch(
                    key,
                    f'torch.compile has no option "{name}": this raises',
                    f"options are settings of {module}, and torch 2.11, 2.13 and 2.15"
                    " have none of this name",
                    "torch._inductor.list_options() lists them" + _near(name),
                )

    def _ignored_mode(self, site: Compiled, source: Source) -> Iterator[PatternMatch]:
        mode = site.arguments.get("mode")
        if mode is None or site.backend not in ("eager", "aot_eager"):
            return
        if site.mode in (None, "default"):
            return
        yield PatternMatch(
            mode,
            f'mode="{site.mode}" has no effect with backend="{site.backend}"',
            "modes are presets of the Inductor backend; others ignore them",
            'leave backend out, or pass backend="inductor"',
            "low",
        )

    def _match(self, node: ast.expr, module: str, setting: str) -> PatternMatch:
        return PatternMatch(
            node,
            f"{module} has no setting {setting}: this raises AttributeError",
            f"torch 2.11, 2.13 and 2.15 have no {shorten(setting)} in {module}",
            _CURES.get(setting, f"remove it, or look the name up: dir({module})")
            + (_near(setting) if setting not in _CURES else ""),
        )


# Options of torch.compile that are no settings.
_OPTIONS = {"guard_filter_fn", "trace.enabled", "trace.graph_diagram"}
_CURES = {
    "cache_dir": "set the environment variable TORCHINDUCTOR_CACHE_DIR",
    "log_level": "use torch._logging.set_logs(dynamo=...) or TORCH_LOGS",
    "output_code": "use torch._logging.set_logs(output_code=True) or TORCH_LOGS",
    "cudagraphs": "set torch._inductor.config.triton.cudagraphs",
    "cache_limit": "set torch._dynamo.config.recompile_limit",
    "max_recompiles": "set torch._dynamo.config.recompile_limit",
}


def _is_imported(node: ast.expr, source: Source) -> bool:
    """Whether the first word is an import where it is used, and no variable."""
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


def _settings_of(
    node: ast.expr, names: frozenset[str], source: Source
) -> frozenset[str]:
    """All settings, where a short name may stand for another module elsewhere."""
    if source.text_of(node).startswith("torch."):
        return names
    return frozenset().union(*settings().values())


def _has(setting: str, names: frozenset[str]) -> bool:
    """A setting, a group of settings, or something private or callable."""
    if setting in names or setting.startswith("_"):
        return True
    return any(name.startswith(f"{setting}.") for name in names)


def _near(setting: str) -> str:
    every = sorted({name for names in settings().values() for name in names})
    similar = difflib.get_close_matches(setting, every, 1, 0.8)
    return f"; there is {similar[0]}" if similar else ""


class SilentErrors(FilePattern):
    """torch._dynamo.config.suppress_errors = True."""

    code = "CF113"

    def read(self, source: Source) -> Iterator[PatternMatch]:
        if "suppress_errors" not in source.text:
            return
        for node in source.nodes:
            if not isinstance(node, ast.Assign) or not is_true(node.value):
                continue
            for target in node.targets:
                if source.dotted(target) == "torch._dynamo.config.suppress_errors":
                    yield PatternMatch(
                        node,
                        "errors of compiling are hidden; what they hit runs eagerly",
                        "suppress_errors turns every error of compiling into a log line"
                        " and runs the function uncompiled",
                        "remove it and see what fails with torchproof check; for"
                        " production use torchproof.compile, which falls back and says"
                        " so",
                    )
