"""Settings that have no effect, do not exist, or hide errors."""

from __future__ import annotations

import ast
import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.static import bindings, compiled
from torchproof.checking.static.compiled import Compiled, is_true, literal
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Definition, Source

# torch reads these once, during `import torch`.
AT_IMPORT = ("TORCH_LOGS", "TORCH_TRACE")
# torch reads these once, at the first torch.compile or import of torch._dynamo. It
# reads others, such as TORCHINDUCTOR_CACHE_DIR, each time it needs them.
AT_COMPILE = words(
    "TORCH_COMPILE_DISABLE TORCHDYNAMO_SUPPRESS_ERRORS TORCHDYNAMO_VERBOSE"
    " TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_COMPILE_THREADS"
    " TORCHINDUCTOR_FX_GRAPH_CACHE"
)
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
    The setting takes effect: logs get longer, or compilation is switched off.
    """

    code = "CF106"
    reference = torch_pages.LOGS

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

    def _match(self, name: str, when: str, node: ast.stmt | ast.expr) -> Match:
        api = {
            "TORCH_LOGS": "torch._logging.set_logs(...)",
            "TORCH_COMPILE_DISABLE": 'torch.compiler.set_stance("force_eager")',
        }.get(name)
        instead = f", or use {api} from inside the program" if api else ""
        return Match(
            node,
            f"{name} is set too late and has no effect",
            f"torch reads {name} once, at {when}, which has run by then",
            f"set it earlier, best in the shell: {name}=... python ...{instead}",
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
    The program failed at that line before.
    """

    code = "CF107"
    source_severity = "high"

    def read(self, source: Source) -> Iterator[Match]:
        if any(module.rpartition(".")[0] in source.text for module in settings()):
            for node in source.nodes:
                yield from self._assigned(node, source)
                yield from self._patched(node, source)
        file = compiled.of(source)
        for site in file.sites:
            yield from self._options(site, source)
            yield from self._ignored_mode(site, source)

    def _assigned(self, node: ast.AST, source: Source) -> Iterator[Match]:
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

    def _patched(self, node: ast.AST, source: Source) -> Iterator[Match]:
        """Reads `config.patch(...)`, with names as keywords, in a dict or a string."""
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

    def _options(self, site: Compiled, source: Source) -> Iterator[Match]:
        options = site.arguments.get("options")
        if site.backend != "inductor" or not isinstance(options, ast.Dict):
            return
        module = "torch._inductor.config"
        for key in options.keys:
            name = literal(key)
            if name and name not in _OPTIONS and not _has(name, settings()[module]):
                assert key is not None
                yield Match(
                    key,
                    f'torch.compile has no option "{name}": this call raises',
                    f"options are settings of {module}, and torch 2.11, 2.13 and 2.15"
                    " have none of this name",
                    "torch._inductor.list_options() lists them" + _near(name),
                )

    def _ignored_mode(self, site: Compiled, source: Source) -> Iterator[Match]:
        mode = site.arguments.get("mode")
        if mode is None or site.backend not in ("eager", "aot_eager"):
            return
        if site.mode in (None, "default"):
            return
        yield Match(
            node=mode,
            message=f'mode="{site.mode}" has no effect with backend="{site.backend}"',
            cause="modes are presets of the Inductor backend; others ignore them",
            advice='remove backend, or pass backend="inductor"',
            severity="low",
        )

    def _match(self, node: ast.expr, module: str, setting: str) -> Match:
        return Match(
            node,
            f"{module} has no setting {setting}: this raises AttributeError",
            f"torch 2.11, 2.13 and 2.15 have no {setting} in {module}",
            _REPLACEMENTS[setting]
            if setting in _REPLACEMENTS
            else f"remove it, or look the name up: dir({module}){_near(setting)}",
        )


# Options of torch.compile that are not settings of torch._inductor.config.
_OPTIONS = {"guard_filter_fn", "trace.enabled", "trace.graph_diagram"}
_REPLACEMENTS = {
    "cache_dir": "set the environment variable TORCHINDUCTOR_CACHE_DIR",
    "log_level": "use torch._logging.set_logs(dynamo=...) or TORCH_LOGS",
    "output_code": "use torch._logging.set_logs(output_code=True) or TORCH_LOGS",
    "cudagraphs": "set torch._inductor.config.triton.cudagraphs",
    "cache_limit": "set torch._dynamo.config.recompile_limit",
    "max_recompiles": "set torch._dynamo.config.recompile_limit",
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


def _settings_of(
    node: ast.expr, names: frozenset[str], source: Source
) -> frozenset[str]:
    """The settings of the module; of all modules if the source uses a short name."""
    if source.text_of(node).startswith("torch."):
        return names
    return frozenset().union(*settings().values())


def _has(setting: str, names: frozenset[str]) -> bool:
    """Whether a name is a setting, a group of settings, or private."""
    if setting in names or setting.startswith("_"):
        return True
    return any(name.startswith(f"{setting}.") for name in names)


def _near(setting: str) -> str:
    every = sorted({name for names in settings().values() for name in names})
    similar = difflib.get_close_matches(setting, every, 1, 0.8)
    return f"; did you mean {similar[0]}?" if similar else ""


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
    Without it, errors are raised again: fix them before you deploy.
    """

    code = "CF113"
    source_text = "compile errors are hidden, and the functions run uncompiled"
    cause_text = (
        "suppress_errors turns every error of compiling into a log line and runs the"
        " function uncompiled"
    )
    advice_text = (
        "remove it and run torchproof check to see what fails; in production use"
        " torchproof.compile, which falls back to eager and reports it"
    )

    def read(self, source: Source) -> Iterator[Match]:
        if "suppress_errors" not in source.text:
            return
        for node in source.nodes:
            if not isinstance(node, ast.Assign) or not is_true(node.value):
                continue
            for target in node.targets:
                if source.dotted(target) == "torch._dynamo.config.suppress_errors":
                    yield Match(node)
