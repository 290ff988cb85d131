"""Edits that findings offer: applied as they are, they remove what was found."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from rule_programs import FOLDER, programs, repaired

from torchproof.checking import rules, suspicions
from torchproof.checking.rules import settings as known_settings
from torchproof.records import Finding, GraphEvent

IGNORED = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{each}") for each in IGNORED]


def read(path: Path) -> list[Finding]:
    return [each.finding for each in suspicions.read([path]).suspicions]


def edited(name: str, folder: Path, code: str | None = None) -> Path:
    """A program of tests/rules after the edits of what reading it finds."""
    path = FOLDER / f"{name}.py"
    found = [f for f in read(path) if code is None or f.code == code]
    target = folder / path.name
    target.write_text(repaired(path, found))
    return target


OFFERED = {
    *("CF102", "CF106", "CF107", "CF112", "NC801", "NC802", "NC803"),
    *("TS103", "TS104", "TS105"),
}


def test_an_edit_of_the_source_removes_its_finding_and_adds_none(
    tmp_path: Path,
) -> None:
    offered = set()
    for path in sorted(FOLDER.glob("*.py")):
        before = read(path)
        cured = [f for f in before if f.remedy and f.remedy.kind == "edit"]
        if cured:
            offered |= {f.code for f in cured}
            left = {(f.code, f.function, f.key) for f in before if f not in cured}
            found = read(edited(path.stem, tmp_path))
            assert {(f.code, f.function, f.key) for f in found} <= left, path
    assert offered == OFFERED


def outputs(path: Path, factory: str) -> list[Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.compiler.set_stance("default")
    fn, calls = runpy.run_path(str(path))[factory]()
    return [fn(*call) for call in calls]


def test_programs_that_bypass_the_compiled_code_run_it(
    observe_all: Any, tmp_path: Path
) -> None:
    """With the edits of the source, and of a run where it offers one."""
    names = ("NC802-bad", "NC802-bad_2", "NC803-bad", "NC803-bad_2", "NC804-bad")
    own = [each for each in programs("NC8*") if each.name in (*names, "NC805-bad_5")]
    own.sort(key=lambda each: each.rule == "NC804")  # the next would have its stance
    seen = observe_all([(each.target, each.options) for each in own])
    targets = []
    for program, observation in zip(own, seen, strict=True):
        found = [*read(program.path), *rules.check(observation)]
        file = tmp_path / f"{program.name.replace('-', '_')}.py"
        file.write_text(repaired(program.path, found))
        targets.append((f"{file}:{program.factory}", program.options))
        before = outputs(program.path, program.factory)
        torch.testing.assert_close(outputs(file, program.factory), before)
    for (target, _), observation in zip(targets, observe_all(targets), strict=True):
        assert not rules.check(observation), target
        assert observation.of(GraphEvent), target


def test_a_late_variable_becomes_what_it_stands_for(tmp_path: Path) -> None:
    """Reading the file would set variables of this process."""
    text = edited("CF106", tmp_path).read_text()
    assert "    torch._inductor.config.max_autotune = True  # <- CF106\n" in text
    late, setting = "torch._inductor.config.max_autotune", torch._inductor.config
    assert late in known_settings.SETTINGS.values() and not setting.max_autotune
    for name, full in known_settings.SETTINGS.items():
        assert name in known_settings.AT_COMPILE
        module, _, last = full.rpartition(".")
        assert last in known_settings.settings()[module]
    for log in known_settings.LOGS:
        torch._logging.set_logs(**{log: True})
    torch._logging.set_logs()


def test_settings_get_their_names(tmp_path: Path) -> None:
    known = runpy.run_path(str(edited("CF107", tmp_path)))
    before = torch._inductor.config.triton.cudagraphs
    try:
        known["graphs"]()
        assert torch._inductor.config.triton.cudagraphs is True
    finally:
        torch._inductor.config.triton.cudagraphs = before
        torch._dynamo.config.suppress_errors = False
    for function in ("patched", "grouped"):
        known[function]()
    known["option"](torch.relu)
    assert known["ignored"](lambda x: x + 1)(torch.ones(2)).sum() == 4


def test_a_checkpoint_has_the_names_of_the_original(tmp_path: Path) -> None:
    program = runpy.run_path(str(edited("CF112", tmp_path)))
    program["save"](tmp_path / "a.pt")
    program["saved"](torch.nn.Linear(2, 2), tmp_path / "b.pt")
    kept = torch.load(tmp_path / "a.pt")["model"], torch.load(tmp_path / "b.pt")
    assert all(set(state) == {"weight", "bias"} for state in kept)


def test_torchscript_takes_what_is_edited(tmp_path: Path) -> None:
    x = torch.ones(1, 2)
    scripted = runpy.run_path(str(edited("TS103", tmp_path)))
    assert torch.equal(torch.jit.script(scripted["scaled"])(x), 2 * x)
    mixed, model = runpy.run_path(str(edited("TS105", tmp_path))), torch.nn.Linear(2, 2)
    for made in (mixed["of_script"](model), mixed["of_trace"](model, x)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.testing.assert_close(made(x), model(x))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for made in (mixed["script_of"](model), mixed["trace_of"](model, x)):
        torch.testing.assert_close(made(x), model(x))
    traced = runpy.run_path(str(edited("TS101", tmp_path, "TS104")))
    assert torch.equal(
        traced["dropped"](torch.ones(64))(torch.ones(64)), torch.ones(64)
    )


@pytest.fixture
def alone(tmp_path: Path) -> Iterable[None]:
    """A process group of this process."""
    from torch import distributed

    rendezvous = f"file://{tmp_path / 'group'}"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_ddp_is_compiled_without_fullgraph(alone: None, tmp_path: Path) -> None:
    model, x = torch.nn.Linear(4, 2), torch.ones(2, 4)
    program = runpy.run_path(str(edited("CF102", tmp_path)))
    with torch._dynamo.config.patch(suppress_errors=False):
        torch._dynamo.reset()
        torch.testing.assert_close(program["strict"](model)(x), model(x))


WHOLE = """\
import torch


def whole(function):
    torch.compile(function)
    return function


def prepared(model, x):
    torch.compile(model, backend="eager")
    return model(x)


def shared():
    torch.compile(model, backend="eager")
    return model(1)


def saved(model, x, path):
    torch.compile(model)
    torch.save(model(x), path)
    torch.save(model.state_dict(), path)


def kept(self, x):
    torch.compile(self.model)
    return self.model(x)


def twice(model, x):
    torch.compile(model); x = x + 1
    return model(x)


def split(model, x):
    torch.compile(
        model,
        backend="eager",  # to try it
    )
    return model(x)


model = torch.nn.ReLU()
"""


def test_a_dropped_result_is_assigned_only_where_the_name_is_used_after(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(WHOLE)
    found = [each for each in read(program) if each.code == "NC801"]
    assert len(found) == 7
    functions = {f.function for f in found if f.remedy and f.remedy.kind == "edit"}
    assert functions == {"prepared", "twice", "split"}
    after = repaired(program, found)
    assert '    model = torch.compile(model, backend="eager")\n' in after
    assert "    model = torch.compile(\n        model,\n        backend" in after


def test_a_file_with_other_line_ends_gets_no_edit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_bytes(WHOLE.replace("\n", "\r\n").encode())
    assert {f.remedy.kind for f in read(program) if f.remedy} == {"none"}


def test_a_name_that_is_bound_again_is_no_original(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "def f(model):\n"
        "    model = torch.jit.script(model)\n"
        "    return torch.compile(model)\n"
    )
    [found] = [each for each in read(program) if each.code == "TS105"]
    assert found.remedy and found.remedy.kind == "none"


PERHAPS = """\
import torch


def saved(model, path, fast):
    if fast:
        model = torch.compile(model)
    torch.save(model.state_dict(), path)


def called(model, x, fast):
    if fast:
        quick = torch.compile(model)
    return model(x)


def scripted(model, fast):
    made = model
    if fast:
        made = torch.jit.script(model)
    return torch.compile(made)
"""


def test_what_may_not_be_compiled_gets_no_edit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PERHAPS)
    found = read(program)
    assert {"CF112", "NC803", "TS105"} <= {each.code for each in found}
    assert {each.remedy.kind for each in found if each.remedy} == {"none"}


SETTINGS = """\
import torch
from torch._inductor import config as inductor


def settings(function):
    inductor.triton.cudagraph = True
    inductor.patch(max_autotun={"{": 1})
    inductor.patch(triton_cudagraphs=True)
    torch._dynamo.config.nonsense = 3
    return torch.compile(function, options={"triton.cudagraph": True})
"""


def test_a_setting_with_a_similar_name_is_set_instead(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SETTINGS)
    found = read(program)
    kinds = [each.remedy.kind for each in found if each.remedy]
    assert sorted(each.line or 0 for each in found) == [6, 7, 8, 9, 10]
    assert kinds.count("none") == 2  # a keyword has no dot; nothing is similar
    program.write_text(repaired(program, found))
    assert [each.line for each in read(program)] == [8, 9]
