"""Every private hook torchproof uses, tried on the installed torch."""

from __future__ import annotations

import ast
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import forked_commands
import pytest
import torch

import torchproof
from torchproof.checking.rules import RULES
from torchproof.records import blame, is_missing_hook, untested_torch
from torchproof.torch_private import contract, hooks

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = ROOT / "src/torchproof/torch_private"
FEATURES = {feature.name: feature for feature in contract.contract()}


@pytest.fixture(autouse=True)
def fresh_probes() -> Any:
    contract.missing.cache_clear()
    yield
    contract.missing.cache_clear()


@pytest.mark.parametrize("feature", FEATURES)
def test_installed_torch_has_every_name_of_the_contract(feature: str) -> None:
    assert contract.missing(feature) == ()


def test_every_module_of_torch_in_use_is_in_the_contract() -> None:
    listed = {
        name.removeprefix("file:").removesuffix(".py").replace("/", ".").split(":")[0]
        for feature in FEATURES.values()
        for names in feature.hooks.values()
        for name in names
    }
    used: set[str] = set()
    for file in PRIVATE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= set(re.findall(r"^torch(?:\.\w+)+$", node.value))
    private = {name for name in used if re.match(r"torch\..*\b_", name)}
    covered = {each for name in listed for each in (name, name.rpartition(".")[0])}
    assert private - covered == set()


def test_a_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._dynamo.eval_frame.skip_code")
    [message] = contract.missing("bypassed code")
    assert "torch._dynamo.eval_frame:skip_code" in message
    assert metadata.version("torch") in message and is_missing_hook(message)


@pytest.mark.parametrize(
    "changed",
    [
        lambda renamed: None,
        lambda code, added: None,
        lambda: None,
    ],
)
def test_a_name_with_other_parameters_is_missing(
    changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._dynamo.eval_frame.skip_code", changed)
    [message] = contract.missing("bypassed code")
    assert "skip_code(code)" in message and is_missing_hook(message)


@pytest.mark.parametrize(
    "compatible",
    [lambda code, added=None: None, lambda *args, **kwargs: None],
)
def test_a_name_with_more_optional_parameters_is_not_missing(
    compatible: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._dynamo.eval_frame.skip_code", compatible)
    assert contract.missing("bypassed code") == ()


def test_a_file_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_torch_folder", lambda: Path("/nowhere"))
    assert "torch/_dynamo/eval_frame.py" in " ".join(contract.missing("stack traces"))


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0.dev20270101", "3.0.0"])
def test_an_untested_version_of_torch_is_named(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    note = untested_torch()
    assert note is not None and version in note and "\n" not in note


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.1"])
def test_a_tested_version_of_torch_is_not(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert untested_torch() is None


# -- what torchproof does without a hook -----------------------------------------------

# torch itself calls these with positional arguments, so it works under the new name of
# a parameter as it did before.
RENAMED = """
import torch
from {module} import {owner} as owner

original = owner.{name}


def renamed(self, {parameters}):
    return original(self, {parameters})


owner.{name} = renamed


def make():
    def fn(x):
        print("a break")
        return x.sin() + 1

    return fn, [(torch.ones(3),)] * 2
"""
WITHOUT_COMPILER_HOOK = RENAMED.format(
    module="torch._dynamo.output_graph",
    owner="OutputGraph",
    name="_call_user_compiler",
    parameters="graph_module, example_inputs",
)


def checked(folder: Path, source: str, *flags: str) -> dict[str, Any]:
    (folder / "model.py").write_text(source)
    result = forked_commands.torchproof(
        *("check", "model.py:make", *flags, "--format", "json"), cwd=folder
    )
    assert "Traceback" not in result.stderr
    plain: dict[str, Any] = json.loads(result.stdout)
    return plain


def test_check_skips_a_part_whose_hook_has_changed(tmp_path: Path) -> None:
    run = checked(tmp_path, WITHOUT_COMPILER_HOOK, "--effort", "quick")
    part = run["parts"]["breaks"]
    assert part["status"] == "skipped"
    assert "OutputGraph._call_user_compiler" in part["why"]
    assert run["counts"]["graph_breaks"] is None
    assert {finding["origin"] for finding in run["findings"]} <= {"static"}


def test_the_runtime_stays_eager_without_its_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("torch._dynamo.guards.DeletedGuardManagerWrapper")
    model = torchproof.compile(torch.nn.Linear(2, 2))
    inputs = torch.ones(1, 2)
    assert torch.equal(model(inputs), torch.nn.Module.__call__(model, inputs))
    status = torchproof.status(model)
    assert status.strategy == "eager"
    assert "DeletedGuardManagerWrapper" in str(status)


# A rule may name what only later versions say.
SINCE_2_13 = {"nb_(int|float|index)"}


def test_every_kind_of_break_that_a_rule_names_is_one_of_this_torch() -> None:
    torch_folder = Path(torch.__file__).parent
    registry = (torch_folder / "_dynamo/graph_break_registry.json").read_text()
    kinds = [
        entry["Gb_type"]
        for entries in json.loads(registry).values()
        for entry in entries
    ]
    # Some are no kind of the registry, but the text of an error.
    files = [
        *torch_folder.glob("_dynamo/**/*.py"),
        torch_folder / "fx/experimental/symbolic_shapes.py",
    ]
    kinds += [file.read_text(errors="replace") for file in files]
    patterns = {each for rule in RULES for each in getattr(rule, "types", ())}
    assert len(patterns) > 40
    if metadata.version("torch") < "2.13":
        patterns -= SINCE_2_13
    unknown = {
        pattern
        for pattern in patterns
        if not any(re.search(pattern, kind) for kind in kinds)
    }
    assert unknown == set()


# -- the hooks themselves -------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def test_trace_records_reach_a_handler_and_stop_afterwards() -> None:
    seen: list[dict[str, Any]] = []
    with hooks.trace_records(lambda metadata, payload: seen.append(metadata)):
        torch.compile(broken, backend="eager")(torch.ones(2))
    names = {m["artifact"]["name"] for m in seen if "artifact" in m}
    assert "dynamo_graph_break_reason" in names
    assert any("compilation_metrics" in m for m in seen)
    before = len(seen)
    torch._dynamo.reset()
    torch.compile(broken, backend="eager")(torch.ones(2))
    assert len(seen) == before


def test_graphs_are_wrapped_and_counted_for_any_backend() -> None:
    runs: list[str] = []

    def wrap(output_graph: Any, compiled: Any) -> Any:
        name = hooks.compile_id_of(output_graph)

        def counted(*args: Any) -> Any:
            runs.append(name)
            return compiled(*args)

        return counted

    with hooks.graph_callables(wrap):
        fn = torch.compile(broken, backend="aot_eager")
        fn(torch.ones(2))
        fn(torch.ones(2))
    assert len(runs) == 4 and len(set(runs)) == 2


def test_skipped_frame_is_asked_about_again() -> None:
    frames: list[str] = []

    def wrap(convert: Any, conversion: hooks.FrameRequest) -> Any:
        if conversion.frame.f_code is not broken.__code__:
            return convert()
        assert not conversion.fullgraph and not conversion.is_recompile
        frames.append(conversion.frame.f_code.co_name)
        return hooks.skip_once()

    with hooks.frame_callbacks(wrap):
        fn = torch.compile(broken, backend="eager")
        for _ in range(3):
            assert torch.equal(fn(torch.ones(2)), torch.full((2,), 3.0))
    assert frames == ["broken"] * 3


def test_inductor_is_stopped_before_it_generates_code() -> None:
    torch._dynamo.utils.counters.clear()
    with hooks.no_code_generation():
        fn = torch.compile(lambda x: x.sin() + 1, mode="max-autotune-no-cudagraphs")
        assert torch.equal(fn(torch.zeros(3)), torch.ones(3))
    assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] == 0


def test_code_that_inductor_writes_is_not_the_users(tmp_path: Path) -> None:
    from torch._inductor.codecache import code_hash, get_path

    name, _, path = get_path(code_hash("import torch"), "py")
    assert blame.whose(path) == "generated"
    assert blame.whose(str(tmp_path / name[1:3] / f"{name}.py")) == "generated"
    assert blame.whose(str(tmp_path / "ab" / f"{name}.py")) == "user"
    assert blame.whose(str(tmp_path / name[1:3] / "cab.py")) == "user"


def test_files_that_torch_has_named_before_are_named_again() -> None:
    def named_files() -> set[str]:
        found: set[str] = set()

        def receive(metadata: dict[str, Any], payload: str) -> None:
            if "str" in metadata:
                found.add(metadata["str"][0])

        with hooks.trace_records(receive):
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        return found

    assert __file__ in named_files() and __file__ in named_files()


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_marks_stance_and_compiled_state_are_read() -> None:
    x = torch.ones(4, 2)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    assert hooks.marked_dimensions(x) == [0, 1]
    assert hooks.marked_dimensions(torch.ones(2)) == []
    assert hooks.stance() == "default"
    with torch.compiler.set_stance("force_eager"):
        assert hooks.stance() == "force_eager"
    module = torch.nn.Linear(1, 1)
    assert not hooks.is_compiled(module)
    assert hooks.is_compiled(torch.compile(module))
    assert hooks.is_compiled(torch.compile(helper))
    module.compile()
    assert hooks.is_compiled(module)


def test_every_patch_is_taken_back() -> None:
    from torch._dynamo import convert_frame, eval_frame, output_graph

    before = (
        eval_frame.OptimizeContext.__init__,
        convert_frame.CatchErrorsWrapper.__call__,
        output_graph.OutputGraph._call_user_compiler,
        torch._TorchCompileInductorWrapper.__call__,
    )
    with (
        pytest.raises(ValueError),
        hooks.no_code_generation(),
        hooks.compiled_contexts(lambda context: None),
    ):
        raise ValueError
    after = (
        eval_frame.OptimizeContext.__init__,
        convert_frame.CatchErrorsWrapper.__call__,
        output_graph.OutputGraph._call_user_compiler,
        torch._TorchCompileInductorWrapper.__call__,
    )
    assert before == after
