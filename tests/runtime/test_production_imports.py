"""Production code needs torch, numpy and psutil alone."""

from pathlib import Path

from commands import python

HERE = Path(__file__).parent
PROGRAM = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import without_the_command_line as production
import torch
import torchproof

model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
compiled = torchproof.compile(model)
assert torch.equal(compiled(x), model(x))
graphed = torchproof.graph(model, (x,))
assert torch.equal(graphed(x), model(x))
assert str(torchproof.status(compiled)) and str(torchproof.status(graphed))
try:
    torchproof.load("no-pack")
except torchproof.UserError as error:
    assert "no-pack" in str(error)
assert not production.ABSENT & {{name.partition(".")[0] for name in sys.modules}}
print(torchproof.status(compiled).state)
"""


def test_production_code_runs_without_what_the_command_line_needs() -> None:
    done = python(PROGRAM)
    assert done.stdout == "compiled\n", done.stderr


def test_the_command_line_needs_more() -> None:
    """The twin: what is kept from production code above is missed elsewhere."""
    first = f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
    done = python(
        f"{first}import without_the_command_line\nimport torchproof.fixing.search"
    )
    assert "no module libcst in production" in done.stderr
