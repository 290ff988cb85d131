"""Training scripts of library models are diagnosed as torch's own logs have it.

benchmarks/library_scripts.py compares whole training runs of many models with the logs;
here are its parts, and a few models for one batch.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import library_scripts

LIBRARY = "/venv/lib/python3.11/site-packages/transformers/modeling_x.py"
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
SCRIPT = "/home/me/train.py"


def logged(*messages: str) -> str:
    """Messages as torch's log writes them, one prefix a line."""
    prefix = "V1116 07:00:00.107000 7169 torch/_dynamo/guards.py:5396] [0/1] [__{}] "
    lines = []
    for message in messages:
        log = "recompiles" if message.startswith("Recompiling") else "graph_breaks"
        lines += [prefix.format(log) + line for line in message.split("\n")]
    return "\n".join(["the script's own output", *lines, "more of it"])


BREAK = f"""Graph break in user code at {TORCH}:10
Graph Break Reason: something
User code traceback:
  File "{SCRIPT}", line 41, in <module>
    loss = compiled(**batch).loss
  File "{TORCH}", line 1778, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
  File "{LIBRARY}", line 7, in forward
    self.embed(x)
  File "{TORCH}", line 10, in helper
    torch.nonzero(x)"""
AGAIN = "Graph break (user stack suppressed due to duplicate graph break) in user code"
RECOMPILE = """Recompiling function wrapper in /x/generic.py:937
    triggered by the following guard failure(s):
    - 0/1: tensor 'kwargs['input_ids']' size mismatch at index 0. expected 3, actual 2
    - 0/0: tensor 'labels' size mismatch at index 1. expected 9, actual 8"""


def test_a_logged_break_is_placed_in_the_library_and_never_at_the_call() -> None:
    log = library_scripts.read_log(logged(BREAK, RECOMPILE), SCRIPT, None)
    assert log.breaks == {(LIBRARY, 7)}
    [recompile] = log.recompiles
    assert recompile.function == "wrapper"
    assert [guard.split()[1] for guard in recompile.guards] == [
        "'kwargs['input_ids']'",
        "'labels'",
    ]


def test_a_repeated_break_has_its_line_and_torchs_own_is_no_place() -> None:
    text = logged(f"{AGAIN} at {LIBRARY}:9", f"{AGAIN} at {TORCH}:10")
    assert library_scripts.read_log(text, SCRIPT, None).breaks == {(LIBRARY, 9)}


def test_a_compiled_function_of_the_script_is_the_place() -> None:
    inside = BREAK.replace("line 41, in <module>", "line 41, in compute")
    log = library_scripts.read_log(logged(inside), SCRIPT, "compute")
    assert log.breaks == {(SCRIPT, 41)}


def finding(**changed: Any) -> dict[str, Any]:
    usual = {
        "code": "GB104",
        "kind": "graph_break",
        "file": LIBRARY,
        "line": 7,
        "function": "Net.forward",
        "owner": "library",
        "message": "",
        "fix": "",
        "status": "open",
        "origin": "dynamic",
        "evidence": [],
    }
    return usual | changed


def run_of(*findings: dict[str, Any], recompiles: int = 0) -> dict[str, Any]:
    counts = {"recompiles": recompiles}
    return {"findings": list(findings), "counts": counts, "where": "/home/me"}


RECOMPILED = {
    "code": "RC201",
    "kind": "recompile",
    "owner": "user",
    "file": "train.py",
    "message": "size 1 changed: Net.forward was recompiled 1 time",
    "fix": 'torch._dynamo.maybe_mark_dynamic(batch["input_ids"], 1) before',
    "evidence": ["0/1: tensor 'kwargs['input_ids']' size mismatch at index 0."],
}
SOURCE = 'for batch in loader:\n    compiled(input_ids=batch["input_ids"])'


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (run_of(finding(), finding(**RECOMPILED), recompiles=1), 0),
        # No finding, and one more than torch logs.
        (run_of(finding(**RECOMPILED), recompiles=1), 2),
        # The break at the script's own line: missing, extra, unlike the factory.
        (run_of(finding(file="train.py"), finding(**RECOMPILED), recompiles=1), 3),
        (run_of(finding(function="<module>"), recompiles=1), 1),
        (run_of(finding(), recompiles=2), 1),
        (
            run_of(
                finding(),
                finding(**RECOMPILED | {"fix": "maybe_mark_dynamic(logits, 0) before"}),
                recompiles=1,
            ),
            1,
        ),
        (
            run_of(
                finding(),
                finding(**RECOMPILED | {"evidence": ["0/1: tensor 'other' size"]}),
                recompiles=1,
            ),
            1,
        ),
    ],
)
def test_what_differs_is_said(script: dict[str, Any], wrong: int) -> None:
    log = library_scripts.read_log(logged(BREAK, RECOMPILE), SCRIPT, None)
    said = library_scripts.disagreements({(LIBRARY, 7)}, script, log, SOURCE)
    assert len(list(said)) == wrong


@pytest.mark.parametrize("form", library_scripts.FORMS)
def test_the_backend_of_the_plain_run_moves_no_line(form: str) -> None:
    body = library_scripts.FORMS[form]
    written = library_scripts.program("vit", body)
    plain = library_scripts.program("vit", body, backend="eager")
    compile(written, "train.py", "exec")
    assert "OPTIONS" not in written + plain and "FAMILY" not in written + plain
    lines = zip(written.splitlines(), plain.splitlines(), strict=True)
    differing = [(one, two) for one, two in lines if one != two]
    assert len(differing) == 1 and 'backend="eager"' in differing[0][1]


def places(observation: Any) -> set[tuple[str, int]]:
    """Where the findings are that have to be inside what is compiled."""
    found = [f for f in rules.check(observation) if f.kind in library_scripts.PLACED]
    assert "<module>" not in {finding.function for finding in found}
    return {(Path(f.file or "-").name, f.line or 0) for f in found}


def base_version(package: str) -> str:
    return importlib.metadata.version(package).partition("+")[0]


SLOW = pytest.mark.slow


def logged_places(family: str) -> set[tuple[str, int]]:
    """Where torch's log has the family's breaks, as the benchmark recorded it."""
    kept = json.loads(library_scripts.RESULTS.read_text())
    for package in library_scripts.AROUND:
        if not kept[package].startswith(base_version(package)):
            pytest.skip(f"the lines hold for {package} {kept[package]}")
    return {(file, line) for file, line in kept["rows"][f"{family}, model"]["places"]}


def one_batch(family: str, body: str) -> str:
    text = library_scripts.program(family, body, backend="eager")
    return text.replace("(samples,", "(samples[:3],")


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("gpt2", "model"),
        pytest.param("gpt2", "trainer", marks=SLOW),
        pytest.param("gpt2", "partial", marks=SLOW),
        pytest.param("mixtral", "main", marks=SLOW),
        pytest.param("llava", "in place", marks=SLOW),
        pytest.param("opt", "forward", marks=SLOW),
    ],
)
def test_a_script_breaks_where_the_log_does(
    family: str, form: str, observe: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(one_batch(family, library_scripts.FORMS[form]))
    assert places(observe(str(script))) == logged_places(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "mixtral", "llava", "opt"])
def test_a_factory_breaks_where_the_log_does(
    family: str, observe: Any, tmp_path: Path
) -> None:
    factory = tmp_path / "target.py"
    factory.write_text(one_batch(family, library_scripts.FACTORY))
    observation = observe(f"{factory}:make", train=True)
    assert places(observation) == logged_places(family)


@pytest.mark.slow
def test_a_break_below_the_scripts_own_compiled_function_is_placed_in_it(
    observe: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(one_batch("gpt2", library_scripts.FORMS["together"]))
    [found] = [f for f in rules.check(observe(str(script))) if f.kind == "graph_break"]
    assert (found.owner, found.function) == ("user", "compute")
    assert (found.source or "").strip() == "outputs = model(**batch)"


COMPILED = 'compiled = torch.compile(model, backend="eager")'
CALLED = '    with torch.autocast("cpu"'
WARM_UP = (
    " model once ",
    COMPILED,
    f"model(**collate(samples[:3]))\n{COMPILED}",
)


def setting(statement: str) -> tuple[str, str, str]:
    return statement, COMPILED, f"{statement}\n{COMPILED}"


def marks(*sizes: str) -> list[tuple[str, str, str]]:
    """The marks that the fix of a recompile names: `labels 0` is size 0 of labels."""
    edits = []
    for size in sizes:
        name, dim = size.split()
        mark = f'torch._dynamo.maybe_mark_dynamic(batch["{name}"], {dim})'
        edits.append((mark, CALLED, f"    {mark}\n{CALLED}"))
    return edits


TEXT = marks("input_ids 0", "input_ids 1", "labels 0", "labels 1")
LOGGER = "transformers.modeling_utils.logger.warning_once"
# What the fixes of a script say, the line it is about, and that line as edited.
FOLLOWED = {
    "gpt2": [
        setting("import transformers.modeling_utils"),
        setting(f"torch._dynamo.config.ignore_logging_functions.add({LOGGER})"),
        *TEXT,
    ],
    "vit": [WARM_UP, *marks("pixel_values 0", "labels 0")],
    "segformer": [WARM_UP, *marks("pixel_values 0", "labels 0")],
    "mixtral": [
        WARM_UP,
        setting("torch._dynamo.config.capture_dynamic_output_shape_ops = True"),
        *TEXT,
    ],
    "opt": [
        (
            "module.compile()",
            COMPILED,
            "for layer in model.model.decoder.layers:\n"
            '    layer.compile(backend="eager", dynamic=True)\n'
            "compiled = model",
        ),
    ],
    "llava": [
        WARM_UP,
        setting("torch._dynamo.config.capture_scalar_outputs = True"),
        *TEXT,
        *marks("attention_mask 0", "attention_mask 1"),
        ("drop_last=True", "batch_size=3", "batch_size=3, drop_last=True"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FOLLOWED)
def test_every_fix_followed_leaves_nothing(
    family: str, observe: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    text = library_scripts.program(
        family, library_scripts.FORMS["model"], backend="eager"
    )
    script.write_text(text)
    fixes = " ".join(finding.fix for finding in rules.check(observe(str(script))))
    for advice, old, new in FOLLOWED[family]:
        assert advice in fixes
        assert text.count(old) == 1
        text = text.replace(old, new)
    script.write_text(text)
    assert rules.check(observe(str(script))) == []
