"""The magics of `%load_ext torchproof`, in notebooks that nbclient runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from commands import run

from torchproof import api, ipython_magics
from torchproof.records import Run, UserError

# In a process of its own: what Jupyter's libraries warn about is not our matter.
EXECUTE = """
import json, sys, nbclient, nbformat
cells = map(nbformat.v4.new_code_cell, json.load(open("cells.json")))
book = nbformat.v4.new_notebook(cells=list(cells))
client = nbclient.NotebookClient(book, timeout=1500, kernel_name="python3")
client.allow_errors = True
client.execute()
json.dump([cell.outputs for cell in book.cells], open("outputs.json", "w"))
"""
BEGIN = "%load_ext torchproof\nimport torch\nfrom torch import nn"
NET = """\
class Net(nn.Module):
    def forward(self, x):
        if x.sum().item() > 0:
            return x + 1
        return x - 1

class Clean(nn.Module):
    def forward(self, x):
        return x + 1"""


# The same in IPython itself, without Jupyter.
SHELL = """
import json
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell, outputs = InteractiveShell.instance(colors="NoColor"), []
for cell in json.load(open("cells.json")):
    with capture_output() as said:
        done = shell.run_cell(cell, store_history=True)
    data = {} if done.result is None else shell.display_formatter.format(done.result)[0]
    outputs.append([data, said.stdout, said.stderr])
json.dump(outputs, open("outputs.json", "w"))
"""


def outputs(cells: list[str], folder: Path) -> list[list[dict[str, Any]]]:
    """The outputs of each cell of a notebook, run in the folder."""
    (folder / "cells.json").write_text(json.dumps(cells))
    done = run([sys.executable, "-c", EXECUTE], folder, timeout_s=1600)
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(
        (folder / "outputs.json").read_text()
    )
    return found


def result(cell: list[dict[str, Any]]) -> dict[str, str]:
    """The report of a cell by its MIME type."""
    [data] = [each["data"] for each in cell if each["output_type"] == "execute_result"]
    return {kind: "".join(text) for kind, text in data.items()}


def test_check_in_a_notebook(tmp_path: Path) -> None:
    cell = "%%torchproof check --effort quick\n{}\nmodel, calls"
    cells = [
        BEGIN,
        NET,
        "model, calls = Net(), [(torch.ones(4),)]\n"
        "%torchproof check model, calls --effort quick",
        "%torchproof check model",
        cell.format("1 / 0"),
        cell.format("def f(:"),
    ]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    done = forked_commands.python(SHELL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, found, lacks, raises, invalid = json.loads(
        (tmp_path / "outputs.json").read_text()
    )
    report = found[0]
    assert "In [2], line 3" in report["text/plain"]
    assert "GB101" in report["text/html"] and "In [2], line 3" in report["text/html"]
    assert "<script" not in report["text/html"]
    assert lacks[:2] == [{}, ""] and lacks[2].count("\n") == 1
    for (_, traceback, _), kind in (
        (raises, "ZeroDivisionError"),
        (invalid, "SyntaxError"),
    ):
        assert kind in traceback
        assert "ipython_magics.py" not in traceback


def test_an_interrupted_run_is_shown_and_stops_the_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("IPython.display")
    run = Run(
        id="1",
        target="live:Net",
        strategy="full",
        environment={},
        counts={},
        verb="bench",
        ending="interrupted",
    )

    def bench(*_: Any, **__: Any) -> Run:
        raise api._with_run(KeyboardInterrupt(), run)

    monkeypatch.setitem(ipython_magics.VERBS, "bench", bench)
    with pytest.raises(KeyboardInterrupt) as raised:
        ipython_magics._run(object(), "bench", (len, [1]), {})
    assert "run 1" in raised.value._render_traceback_()[0]
    assert "live:Net" in capsys.readouterr().out


@pytest.mark.slow
def test_magics_in_a_notebook(tmp_path: Path) -> None:
    """The line of the magic counts, as the notebook numbers lines."""
    cells = [
        BEGIN,
        f"%%torchproof fix --effort quick\nn = 4\n%time\n{NET}\n"
        "model, calls = Net(), torch.ones(n)",
        "%torchproof check lambda x: model(x), calls --effort quick",
        "repr(_3)",
    ]
    fixed, checked, named = map(result, outputs(cells, tmp_path)[1:])
    assert "In [2], line 6" in fixed["text/plain"]
    new = fixed["text/html"].partition("New text of <b>In [2]</b>")[2]
    assert "%%torchproof fix --effort quick\n" in new and "\n%time\n" in new
    assert "torch.where" in new.partition("</details>")[0]
    assert "Imports of other cells" not in fixed["text/html"]
    assert "In [2], line 6" in checked["text/plain"]
    assert "check of live:lambda" in named["text/plain"]


def test_magics_of_the_page_are_understood() -> None:
    """Their verbs and flags; the tests above run such cells."""
    page = Path(__file__).resolve().parent.parent / "docs" / "notebooks.md"
    shown = re.findall(r"^%%?torchproof (\w+)[^-\n]*(.*)$", page.read_text(), re.M)
    assert [verb for verb, _ in shown] == ["check", "bench", "fix"]
    keywords = "--effort quick --strategies full --seconds 2"
    assert " ".join(flags for _, flags in shown).strip() == keywords
    assert set(ipython_magics._flags("bench", keywords)) == {
        "effort",
        "strategies",
        "seconds",
    }


def test_flags_of_a_magic() -> None:
    words = "--effort quick --train --select GB101,GB104 --timeout=0.5"
    words += " --compile dynamic=True,mode=max-autotune --quiet False"
    assert ipython_magics._flags("check", words) == {
        "effort": "quick",
        "train": True,
        "quiet": False,
        "select": ("GB101", "GB104"),
        "timeout_s": 0.5,
        "compile": {"dynamic": True, "mode": "max-autotune"},
    }
    budgets = [f"--budget{ending}" for ending in (" 1m", "=60", "-s 60")]
    found = [ipython_magics._flags("tune", words) for words in budgets]
    assert found == [{"budget_s": 60.0}] * 3


@pytest.mark.parametrize(
    "words", ["quick", "--effort", "--effort hasty", "--efort quick", "--timeout soon"]
)
def test_wrong_flag_of_a_magic_is_a_user_error(words: str) -> None:
    with pytest.raises(UserError):
        ipython_magics._flags("check", words)
