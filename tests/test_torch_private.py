"""Every private hook torchproof uses, tried on the installed torch."""

from __future__ import annotations

import ast
import json
import operator
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import forked_commands
import pytest
import torch
from packaging.version import Version

import torchproof
from torchproof.checking.rules import RULES
from torchproof.checking.rules.breaks import GraphBreak
from torchproof.records import blame, untested_torch
from torchproof.torch_private import break_ids, contract, hooks
from torchproof.torch_private.dynamo import captured_graphs

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = ROOT / "src/torchproof/torch_private"
FEATURES = {feature.name: feature for feature in contract.contract()}


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    contract.missing.cache_clear()
    yield
    torch._dynamo.reset()
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


@pytest.mark.parametrize(
    ("stand_in", "fact"),
    [
        (None, "torch._dynamo.eval_frame:skip_code"),
        (lambda renamed: None, "skip_code(code)"),
        (lambda code, added: None, "skip_code(code)"),
        (lambda: None, "skip_code(code)"),
        (lambda code, added=None: None, None),
        (lambda *args, **kwargs: None, None),
    ],
)
def test_a_name_that_is_gone_or_has_other_parameters_is_missing(
    stand_in: Any, fact: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stand_in is None:
        monkeypatch.delattr("torch._dynamo.eval_frame.skip_code")
    else:
        monkeypatch.setattr("torch._dynamo.eval_frame.skip_code", stand_in)
    messages = contract.missing("bypassed code")
    assert len(messages) == bool(fact)
    for message in messages:
        assert fact and fact in message and metadata.version("torch") in message


@pytest.mark.parametrize("local", ["compile_wrapper.gone", "gone.result"])
def test_a_local_variable_that_is_gone_is_named(local: str) -> None:
    function = "torch._dynamo.eval_frame:_TorchDynamoContext.__call__"
    assert contract._problem(f"{function}[compile_wrapper.result]") is None
    assert local in str(contract._problem(f"{function}[{local}]"))


def test_a_file_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_torch_folder", lambda: Path("/nowhere"))
    assert "torch/_dynamo/eval_frame.py" in " ".join(contract.missing("stack traces"))


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [
        *(("2.10.1", False), ("2.16.0.dev20270101", False), ("3.0.0", False)),
        *(("2.11.0", True), ("2.13.0+cpu", True), ("2.15.1", True)),
    ],
)
def test_an_untested_version_of_torch_is_named(
    version: str, is_tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    note = untested_torch()
    assert (note is None) is is_tested
    assert note is None or (version in note and "\n" not in note)


# -- what torchproof does without a hook -----------------------------------------------

# torch itself calls it with positional arguments, so it works under the new name of a
# parameter as it did before.
WITHOUT_COMPILER_HOOK = """
import torch
from torch._dynamo.output_graph import OutputGraph

original = OutputGraph._call_user_compiler


def renamed(self, graph_module, example_inputs):
    return original(self, graph_module, example_inputs)


OutputGraph._call_user_compiler = renamed


def make():
    def fn(x):
        print("a break")
        return x.sin() + 1

    return fn, [(torch.ones(3),)] * 2
"""


def test_check_skips_a_part_whose_hook_has_changed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(WITHOUT_COMPILER_HOOK)
    done = forked_commands.torchproof(
        *("check", "model.py:make", "--effort", "quick", "--format", "json"),
        cwd=tmp_path,
    )
    assert "Traceback" not in done.stderr
    run = json.loads(done.stdout)
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


@pytest.mark.skipif(
    Version(metadata.version("torch")) < Version("2.13"), reason="ids of later versions"
)
def test_every_kind_of_break_that_a_rule_names_is_one_of_this_torch() -> None:
    known = set(break_ids().values())
    breaks = [rule for rule in RULES if isinstance(rule, GraphBreak)]
    named = {gb_id for rule in breaks for gb_id in rule.causes}
    assert len(named) > 300 and named <= known


# -- the hooks themselves -------------------------------------------------------------


def counted(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_a_frame_that_is_skipped_once_is_asked_about_again() -> None:
    frames: list[str] = []

    def wrap(convert: Any, request: hooks.FrameRequest) -> Any:
        if request.frame.f_code is not counted.__code__:
            return convert()
        assert not request.fullgraph and not request.is_recompile
        frames.append(request.frame.f_code.co_name)
        return hooks.skip_once()

    with hooks.frame_callbacks(wrap):
        run = torch.compile(counted, backend="eager")
        for _ in range(3):
            assert torch.equal(run(torch.ones(2)), torch.full((2,), 3.0))
    assert frames == ["counted"] * 3


def test_files_that_torch_has_named_before_are_named_again() -> None:
    for _ in range(2):
        records: list[dict[str, Any]] = []
        with hooks.trace_records(lambda metadata, _: records.append(metadata)):  # noqa: B023
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert __file__ in [each["str"][0] for each in records if "str" in each]


def test_marks_of_sizes_are_read() -> None:
    x = torch.ones(4, 2)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    assert hooks.marked_dimensions(x) == [0, 1]
    assert hooks.marked_dimensions(torch.ones(2)) == []


def test_inductor_is_stopped_before_it_generates_code() -> None:
    torch._dynamo.utils.counters.clear()
    with captured_graphs.no_code_generation():
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


def test_every_patch_is_taken_back() -> None:
    from torch._dynamo import convert_frame, eval_frame, output_graph

    def replaceable() -> tuple[Any, ...]:
        return (
            eval_frame.OptimizeContext.__init__,
            convert_frame.CatchErrorsWrapper.__call__,
            output_graph.OutputGraph._call_user_compiler,
            torch._TorchCompileInductorWrapper.__call__,
            list(torch._logging._internal.trace_log.handlers),
        )

    before = replaceable()
    with (
        pytest.raises(ValueError),
        captured_graphs.no_code_generation(),
        hooks.compiled_contexts(lambda context: None),
        hooks.trace_records(lambda metadata, payload: None),
        hooks.frame_callbacks(lambda convert, request: convert()),
        hooks.graph_callables(lambda graph, compiled: compiled),
    ):
        assert not any(map(operator.eq, before, replaceable()))
        raise ValueError
    assert replaceable() == before
