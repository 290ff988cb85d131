"""Checks of tensors become `raise_if`, or are skipped while compiling."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.validation import raise_if

BODY = "    return x + 1"


def step_with(lines: str, *, parameters: str = "x, mask=None, n=9") -> str:
    return program(f"import torch\n\n\ndef step({parameters}):\n{lines}\n{BODY}\n")


# The statement, what it becomes, arguments that it accepts, arguments that it refuses.
CASES = {
    "any": (
        """\
    # All ids are in the table.
    if (x > 9).any():  # <-
        raise ValueError("too large")""",
        """\
    # All ids are in the table.
    raise_if((x > 9).any(), ValueError, "too large")""",
    ),
    "assert": (
        """\
    assert x.max() < 9, f"{x.max()} of {n}"  # <-""",
        """\
    raise_if(torch.logical_not(x.max() < 9), AssertionError, "{} of {}", x.max(), n)""",
    ),
    "assert without message": (
        """\
    assert not (x > 9).any()  # <-""",
        """\
    raise_if((x > 9).any(), AssertionError)""",
    ),
    "item with an exact number": (
        """\
    if x.max().item() > 9:  # <- x.max().item()
        raise ValueError""",
        """\
    raise_if(x.max() > 9, ValueError)""",
    ),
    "item with another number": (
        """\
    if x.max().item() > n:  # <-
        raise IndexError("at most %s" % 9)""",
        """\
    raise_if(x.max().double() > n, IndexError, "at most %s" % 9)""",
    ),
    "format": (
        """\
    if x.max() > n:  # <-
        raise IndexError("{} at most {}".format(x.max().item(), n))""",
        """\
    raise_if(x.max() > n, IndexError, "{} at most {}", x.max(), n)""",
    ),
    "float": (
        """\
    if float(x.max()) > 9.0:  # <-
        raise ValueError(f'{x.max().item():.2f} {{}}')""",
        """\
    raise_if(x.max() > 9.0, ValueError, '{:.2f} {{}}', x.max())""",
    ),
    "python first": (
        """\
    if n is not None and (x > n).any():  # <-
        raise ValueError("too large")""",
        """\
    if n is not None:
        raise_if((x > n).any(), ValueError, "too large")""",
    ),
    "python last": (
        """\
    if (x > 9).any() and n == 9:  # <-
        raise ValueError("too large")""",
        """\
    if n == 9:
        raise_if((x > 9).any(), ValueError, "too large")""",
    ),
    "python or tensor": (
        """\
    if x.dim() > 3 or (x > 9).any():  # <-
        raise ValueError(f"{x.dim()} dimensions")""",
        """\
    if x.dim() > 3:
        raise ValueError("{} dimensions".format(x.dim()))
    raise_if((x > 9).any(), ValueError, "{} dimensions", x.dim())""",
    ),
    "two tensors": (
        """\
    if x.isnan().any() or (x > 9).any():  # <-
        raise ValueError("bad")""",
        """\
    raise_if(torch.logical_or(x.isnan().any(), (x > 9).any()), ValueError, "bad")""",
    ),
    "not all": (
        """\
    if not torch.all(x <= 9):  # <-
        raise ValueError("bad")""",
        """\
    raise_if(torch.logical_not(torch.all(x <= 9)), ValueError, "bad")""",
    ),
    "chained": (
        """\
    assert 0 <= x.max() <= 9, "range"  # <-""",
        """\
    raise_if(
        torch.logical_not(torch.logical_and(0 <= x.max(), x.max() <= 9)),
        AssertionError,
        "range",
    )""",
    ),
    "equal": (
        """\
    if not torch.equal(x, x.clamp(max=9)):  # <-
        raise ValueError("bad")""",
        """\
    if x.shape != x.clamp(max=9).shape:
        raise ValueError("bad")
    raise_if((x != x.clamp(max=9)).any(), ValueError, "bad")""",
    ),
    "allclose": (
        """\
    if not torch.allclose(x, x.clamp(max=9), atol=0.5):  # <-
        raise ValueError("bad")""",
        """\
    raise_if(
        torch.logical_not(torch.isclose(x, x.clamp(max=9), atol=0.5).all()),
        ValueError,
        "bad",
    )""",
    ),
    "held in a name": (
        """\
    largest = x.max().item()  # <-
    if largest > n:
        raise ValueError(f"{largest} is more than {n}")""",
        """\
    largest = x.max()
    raise_if(largest.double() > n, ValueError, "{} is more than {}", largest, n)""",
    ),
    "else": (
        """\
    if (x > 9).any():  # <-
        raise ValueError("bad")
    else:
        x = x + 1""",
        """\
    raise_if((x > 9).any(), ValueError, "bad")
    x = x + 1""",
    ),
    "raises otherwise": (
        """\
    if (x <= 9).all():  # <-
        x = x + 1
    else:
        msg = "bad"
        raise ValueError(msg)""",
        """\
    raise_if(torch.logical_not((x <= 9).all()), ValueError, "bad")
    x = x + 1""",
    ),
    "a check of torch": (
        """\
    torch._check_tensor_all(x <= 9, lambda: f"{x.max()} of {n}")  # <-""",
        """\
    raise_if(~(x <= 9)._is_all_true(), RuntimeError, "{} of {}", x.max(), n)""",
    ),
    "a check of torch with an exception": (
        """\
    torch._check_tensor_all_with(IndexError, x.le(9), lambda: "bad")  # <-""",
        """\
    raise_if(~x.le(9)._is_all_true(), IndexError, "bad")""",
    ),
    "a check of torch without a message": (
        """\
    torch._check_tensor_all(x <= 9)  # <-""",
        """\
    raise_if(
        ~(x <= 9)._is_all_true(),
        RuntimeError,
        "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an enhancement request to PyTorch.)",
    )""",  # noqa: E501
    ),
    "elif": (
        """\
    if n is None:
        x = x + 1
    elif (x > 9).any():  # <-
        raise ValueError("bad")""",
        """\
    if n is None:
        x = x + 1
    else:
        raise_if((x > 9).any(), ValueError, "bad")""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_becomes_raise_if(name):
    before, after = (step_with(lines) for lines in CASES[name])
    draft = rewritten(raise_if, before)
    expected = after.replace(
        "import torch\n", "import torch\nfrom torchproof import raise_if\n", 1
    )
    assert draft.text == expected
    assert draft.tier == "safe"
    assert_same(before, draft.text)


def assert_same(before: str, after: str) -> None:
    """Both versions agree in eager, and compiled without a break; both refuse."""
    torch._dynamo.reset()
    old, new = function_of(before), function_of(after)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    good, bad = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 12.0])
    assert torch.equal(old(good), new(good))
    assert torch.equal(old(good), compiled(good))
    with pytest.raises(Exception) as expected:
        old(bad)
    for version in (new, compiled):
        with pytest.raises(type(expected.value)) as raised:
            version(bad)
        assert type(raised.value) is type(expected.value)
        assert raised.value.args == expected.value.args


REFUSED = {
    "an arm with an assignment": """\
    if (x > 9).any():  # <-
        n = 3
        x = x - 1
        raise ValueError("bad")""",
    "no exception": """\
    if (x > 9).any():  # <-
        x = x - 9""",
    "an operand with an effect": """\
    if (x > 9).any() and n.pop():  # <-
        raise ValueError("bad")""",
    "a message with an effect": """\
    if (x > 9).any():  # <-
        raise ValueError(n.pop())""",
    "a message that may fail": """\
    if (x > 9).any():  # <-
        raise ValueError(f"{x[x > 9][0]}")""",
    "an object instead of a message": """\
    if (x > 9).any():  # <-
        raise ValueError(3)""",
    "a cause": """\
    if (x > 9).any():  # <-
        raise ValueError("bad") from None""",
    "several arguments": """\
    if (x > 9).any():  # <-
        raise OSError(2, "bad")""",
    "a name used later": """\
    largest = x.max().item()  # <-
    if largest > n:
        raise ValueError("bad")
    x = x * largest""",
    "an exception made elsewhere": """\
    if (x > 9).any():  # <-
        raise""",
    "a message of torch's check that is made elsewhere": """\
    torch._check_tensor_all(x <= 9, n)  # <-""",
    "a check of torch with keywords": """\
    torch._check_tensor_all(cond=x <= 9)  # <-""",
    "Python values only": """\
    if n is None:  # <-
        raise ValueError("bad")""",
    "arithmetic with the number": """\
    if x.max().item() * 0.1 > n:  # <-
        raise ValueError("bad")""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(Refused):
        rewritten(raise_if, step_with(REFUSED[name]))
