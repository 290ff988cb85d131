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

from torchproof import rules

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


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("gpt2", "model"),
        pytest.param("gpt2", "trainer", marks=SLOW),
        pytest.param("mixtral", "main", marks=SLOW),
        pytest.param("llava", "in place", marks=SLOW),
        pytest.param("opt", "forward", marks=SLOW),
    ],
)
def test_a_script_breaks_where_the_factory_and_the_log_do(
    family: str, form: str, observe: Any, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    kept = json.loads(library_scripts.RESULTS.read_text())
    versions = {
        name: importlib.metadata.version(name) for name in library_scripts.AROUND
    }
    if versions != {name: kept[name] for name in versions}:
        pytest.skip("the lines hold for other versions")
    script, factory = tmp_path / "train.py", tmp_path / "target.py"
    for file, body in (
        (script, library_scripts.FORMS[form]),
        (factory, library_scripts.FACTORY),
    ):
        text = library_scripts.program(family, body, backend="eager")
        file.write_text(text.replace("(samples,", "(samples[:3],"))
    wanted = {tuple(p) for p in kept["rows"][f"{family}, model"]["places"]}
    assert places(observe(str(script))) == wanted
    assert places(observe(f"{factory}:make", train=True)) == wanted
