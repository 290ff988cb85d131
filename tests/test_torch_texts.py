"""What texts of torch and of the source are read as."""

from __future__ import annotations

import pytest

from torchproof.checking.rules.rule import expression_of
from torchproof.observe.guard_failures import parse
from torchproof.records import BEFORE_THE_BREAK
from torchproof.records.run import Frame
from torchproof.records.stacks import frames_in


def test_a_value_alone_does_not_name_a_statement() -> None:
    assigned = Frame("net.py", 3, "forward", "y.requires_grad = True")
    assert expression_of(assigned) == "y.requires_grad = True"
    computed = Frame("net.py", 3, "forward", "y = x.item()")
    assert expression_of(computed) == "x.item()"
    explained = Frame("net.py", 3, "forward", "return x.item()  # in Python")
    assert expression_of(explained) == "x.item()"


# Dynamo marks a line from the expression to the end of the line.
MARKED = [
    ("meter.update(loss.item(), x.shape[0])", "loss", "loss.item()"),
    ("if not flag and (m := x.max()) > 0.5: y = x / m", "(m", "(m := x.max()) > 0.5"),
    ("ü = x.mean().item(); y = x * ü", "x.mean", "x.mean().item()"),
    ("out = f(g(x, ':')[1:2], y)", "g", "g(x, ':')[1:2]"),
    ("return sorted(x, key=lambda e: e[0]), y", "lambda", "lambda e: e[0]"),
    ("h, w = size.tolist()", "h", "h, w = size.tolist()"),
    ("if self.training and random.random() < p:", "", "*and random.random() < p"),
    ("for c in y.unique():", "", "y.unique()"),
    ("if x.sum() > 0: return x", "", "x.sum() > 0"),
    ("y = x.item(); z = 2", "", "x.item()"),
    ("from os import path, sep", "", "from os import path, sep"),
]


@pytest.mark.parametrize(("code", "start", "named"), MARKED)
def test_an_expression_ends_where_the_next_begins(
    code: str, start: str, named: str
) -> None:
    at = code.index(start)
    marks = " " * at + "^" * (len(code) - at) if start else ""
    trace = f'  File "net.py", line 3, in forward\n    {code}\n    {marks}'
    [frame] = frames_in(trace)
    assert expression_of(frame) == named.replace("*", "self.training ")


def test_torch_s_messages_for_keys_classes_and_missing_tensors() -> None:
    keys = parse("KeyError on param.data['order']")
    assert (keys.cause, keys.source, keys.expected) == ("keys", "param.data", "'order'")
    missing = parse("'NoneType' object has no attribute 'stride'")
    assert (missing.cause, missing.actual) == ("type", "None")
    enum = parse("___check_obj_id(mode, 139690560922416), type=<Mode.FAST: 1>")
    assert (enum.cause, enum.other) == ("identity", "Mode.FAST")


def test_a_number_that_torch_keeps_as_a_tensor_has_its_own_name() -> None:
    assert parse("___as_tensor(L['self'].drop.p).item() == 0.5").source == "self.drop.p"


def test_advice_of_torch_and_names_of_dynamo_are_no_values() -> None:
    size = (
        "2/1: tensor 'self._parameters['weight']' size mismatch at index 0. expected"
        " 16, actual 4. Guard failed on a parameter, consider using"
        " torch._dynamo.config.force_parameter_static_shapes = False to allow dynamism"
        " on parameters."
    )
    assert parse(size).values == ("16", "4")
    for name in ("___stack0[0]", "___stack1.hidden", "__resume_frame_values[1].x"):
        assert parse(f"3/1: {name} == 500").source == BEFORE_THE_BREAK, name
    assert parse("3/1: sizes[0] == 500").source == "sizes[0]"
    freed = parse("3/1: Cache line invalidated because L['x'] got deallocated")
    assert (freed.cause, freed.source, freed.other) == ("identity", "x", "object")


@pytest.mark.parametrize(
    ("code", "first", "expression"),
    [
        ("y = (x.item() - start) % width", "x.item", "x.item() - start"),
        ("f(a, n.tolist(), dim=2) for a in b", "n.tolist", "n.tolist()"),
        ("left, right = x[mask], y[mask]", "x[mask]", "x[mask]"),
        ("if p < self.rate:  # skip: the layer", "p <", "p < self.rate"),
        ("y = f(x.item(),  # the (last)", "x.item", "x.item()"),
        ("y = x[names['#']].item()  # one", "x[", "x[names['#']].item()"),
    ],
)
def test_marks_that_reach_too_far_end_before_a_bracket_or_comment(
    code: str, first: str, expression: str
) -> None:
    start = code.index(first)
    marks = " " * start + "^" * (len(code) - start)
    [frame] = frames_in(f'  File "net.py", line 3, in forward\n    {code}\n    {marks}')
    assert frame.expression == expression
