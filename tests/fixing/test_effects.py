"""Output and checks move into the graph, or are skipped while compiling."""

import contextlib
import functools
import io
import logging

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.behaviour import collected_text
from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.effects import in_graph, skip_while_compiling

HEADER = """\
import logging

import torch
{imports}logger = logging.getLogger(__name__)


def assert_small(x, message):
    if x > 9:
        raise ValueError(message())

"""


def program_with(lines: str, function: str = "", imports: str = "\n") -> str:
    header = HEADER.format(imports=imports)
    function = f"\n{function}\n\n" if function else ""
    step = f"\ndef step(x, n=9):\n{lines}\n    return x + 1\n"
    return program(header + function + step)


# The statements, what they become, and the new function.
CASES = {
    "print": (
        """\
    print("mean", x.mean(), f"{x.max().item():.1f}")  # <-""",
        """\
    _write_in_step(x)""",
        """\
@in_graph
def _write_in_step(x):
    print("mean", x.mean(), f"{x.max().item():.1f}")""",
    ),
    "logger": (
        """\
    if n > 1:
        # The shape is known.
        logger.warning("%s of %d", tuple(x.shape), n)  # <-""",
        """\
    if n > 1:
        # The shape is known.
        _write_in_step(x, n)""",
        """\
@in_graph
def _write_in_step(x, n):
    logger.warning("%s of %d", tuple(x.shape), n)""",
    ),
    "a condition on a tensor": (
        """\
    if x.mean() > 0.5:  # <-
        print("large", torch.float32, x.dtype)
    else:
        print("small")""",
        """\
    _write_in_step(x)""",
        """\
@in_graph
def _write_in_step(x):
    if x.mean() > 0.5:
        print("large", torch.float32, x.dtype)
    else:
        print("small")""",
    ),
    "a number for the output": (
        """\
    mean = x.mean().item()  # <-
    largest = x.max().item()
    print(f"{mean} {largest}")
    total = 3""",
        """\
    _write_in_step(x)
    total = 3""",
        """\
@in_graph
def _write_in_step(x):
    mean = x.mean().item()
    largest = x.max().item()
    print(f"{mean} {largest}")""",
    ),
    "a function that checks": (
        """\
    assert_small(x.max(), lambda: f"{n} < {x.max().item()}")  # <-""",
        """\
    _check_in_step(x, n)""",
        """\
@in_graph
def _check_in_step(x, n):
    assert_small(x.max(), lambda: f"{n} < {x.max().item()}")""",
    ),
    "a check": (
        """\
    if (x > n).any():  # <-
        raise ValueError(f"{x[x > n].tolist()} is more than {n}")""",
        """\
    _check_in_step(x, n)""",
        """\
@in_graph
def _check_in_step(x, n):
    if (x > n).any():
        raise ValueError(f"{x[x > n].tolist()} is more than {n}")""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_moves_into_the_graph(name):
    lines, call, function = CASES[name]
    before = program_with(lines)
    draft = rewritten(in_graph, before)
    after = program_with(call, function, "from torchproof import in_graph\n\n")
    assert draft.text == after
    assert draft.tier == "safe"
    for value in (1.0, 0.25, 12.0):
        assert effects(before, value) == effects(draft.text, value)
        assert effects(before, value) == effects(draft.text, value, compiled=True)


def effects(text: str, value: float, *, compiled: bool = False) -> tuple[object, ...]:
    """What a program returns, raises and writes."""
    torch._dynamo.reset()
    step = function_of(text)
    if compiled:
        step = torch.compile(step, backend="aot_eager", fullgraph=True)
    output, log = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("rewritten").addHandler(handler)
    raised, result = None, None
    with contextlib.redirect_stdout(output):
        try:
            result = step(torch.full((3,), value)).tolist()
        except ValueError as error:
            raised = error.args
    logging.getLogger("rewritten").removeHandler(handler)
    return result, raised, output.getvalue(), log.getvalue()


def test_attributes_become_parameters():
    draft = rewritten(
        in_graph,
        """
        import torch


        class Model(torch.nn.Module):
            def forward(self, x, config):
                print(self.size, config.size, x.shape[0])  # <-
                return x
        """,
    )
    assert draft.text == program(
        """
        import torch
        from torchproof import in_graph


        @in_graph
        def _write_in_forward(size, size_, x):
            print(size, size_, x.shape[0])


        class Model(torch.nn.Module):
            def forward(self, x, config):
                _write_in_forward(self.size, config.size, x)
                return x
        """
    )


REFUSED = {
    "a name used later": """\
    mean = x.mean().item()  # <-
    print(mean)
    x = x - mean""",
    "an unknown function": """\
    print(n.update(x))  # <-""",
    "a change in place": """\
    if x.mean() > 0:  # <-
        print("positive")
        x.add_(1)""",
    "an assignment to an attribute": """\
    if x.mean() > 0:  # <-
        n.seen = True
        print("positive")""",
    "a return": """\
    if x.mean() > 0:  # <-
        print("positive")
        return x""",
    "no output": """\
    mean = x.mean().item()  # <-""",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("rewrite", [in_graph, skip_while_compiling])
def test_refused(name, rewrite):
    with pytest.raises(Refused):
        rewritten(rewrite, program_with(REFUSED[name]))


def test_a_logger_of_an_object_is_refused():
    with pytest.raises(Refused, match="local object"):
        rewritten(
            in_graph,
            """
            def forward(self, x):
                self.logger.info("%s", x)  # <-
                return x
            """,
        )


def test_skipped_while_compiling():
    before = program_with(CASES["a check"][0])
    draft = rewritten(skip_while_compiling, before)
    assert draft.tier == "unsafe"
    assert draft.text == program_with(
        """\
    if not torch.compiler.is_compiling():
        if (x > n).any():
            raise ValueError(f"{x[x > n].tolist()} is more than {n}")"""
    )
    assert effects(before, 1.0) == effects(draft.text, 1.0, compiled=True)


def test_text_that_is_logged_once_is_collected_in_every_run(monkeypatch):
    @functools.lru_cache
    def warning_once(logger, text):
        logger.warning(text)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    for _ in range(2):
        with collected_text() as lines:
            logging.getLogger("rewritten").warning_once("seen")
            logging.getLogger("rewritten").warning_once("seen")
        assert lines == ["rewritten WARNING: seen"]
