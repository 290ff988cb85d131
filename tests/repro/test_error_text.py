"""What two failures must share to be one, and what they may differ in."""

import pytest

from torchproof.packs.repro.oracles import error_text

BREAK = (
    "Failed to trace builtin operator\n"
    "  Explanation: Dynamo does not know how to trace builtin operator `print` with"
    " argument types ['str'] (has_kwargs False)\n"
    "  Hint: Avoid calling builtin `print`.\n\n"
    "  Developer debug context: builtin print\n\n"
    " For more details about this graph break, please visit:"
    " https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0059.html"
)
INTRODUCED = (
    "Encountered graph break when attempting to trace CALL: a function call:\n\n"
    + BREAK
)


def test_a_reason_is_read_with_and_without_its_introduction() -> None:
    expected = {
        "type": "Failed to trace builtin operator",
        "id": "GB0059",
        "names": ["print"],
    }
    assert error_text.reason_of(BREAK) == expected
    assert error_text.reason_of(INTRODUCED) == expected


def test_one_id_is_not_enough_where_another_builtin_is_called() -> None:
    printing = error_text.reason_of(BREAK)
    opening = error_text.reason_of(BREAK.replace("`print`", "`open`"))
    assert error_text.is_same_reason(printing, printing)
    assert not error_text.is_same_reason(opening, printing)


def test_a_name_of_the_users_is_not_compared() -> None:
    """A repro may rename it."""
    one, other = (
        error_text.reason_of(BREAK.replace("`print`", f"`{name}`"))
        for name in ("my_function", "g")
    )
    assert error_text.is_same_reason(other, one)


def test_the_reason_before_a_second_one_counts() -> None:
    text = BREAK.replace("gb0059", "gb0001") + f"\n{error_text._NESTED}\n\n{BREAK}"
    assert error_text.reason_of(text)["id"] == "GB0001"


SAME_MESSAGES = [
    (
        "Dynamo failed to run FX node: call_method view(*(FakeTensor("
        "size=(3, 8)), -1, 7), **{}): got RuntimeError(\"shape '[-1, 7]' is invalid"
        ' for input of size 24")',
        "shape NAME is invalid for input of size N",
    ),
    ("/home/ada/x.py:12: bad 0x7f12 tensor [2, 3, 4]", "PATH:3: bad 0x1 tensor [1, 2]"),
    ("backend='mine' raised:\nValueError: no", "backend=NAME raised: ValueError: no"),
    (
        "cannot add\n\nSet TORCHDYNAMO_VERBOSE=1 for",
        "cannot add Set TORCHDYNAMO_VERBOSE",
    ),
    ("expected L['x'] to be 3", "expected L['y'] to be 4"),
    ("no rule for shop::sell. Use `sell.rule` now", "no rule for a::b. Use `sel..."),
    ("no gradient of shop.sell.default", "no gradient of NAME"),
]


@pytest.mark.parametrize(("one", "other"), SAME_MESSAGES)
def test_messages_differ_in_values_only(one: str, other: str) -> None:
    assert error_text.is_same_message(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "got RuntimeError('shape is invalid')",
            "got RuntimeError('index is invalid')",
        ),
        ("no kernel for aten.sin", "no kernel for aten.cos"),
        ("missing 'torch.sin'", "missing 'torch.cos'"),
        ("no gradient of aten.sin.default", "no gradient of aten.cos.default"),
        ("", "anything"),
    ],
)
def test_other_messages_are_others(one: str, other: str) -> None:
    assert not error_text.is_same_message(one, other)


GUARDS = {
    "0/1: tensor 'x' size mismatch at index 0. expected 8, actual 5": "size",
    "tensor 'L['x']' size mismatch at index 0. expected 8, actual 1": "size 0 or 1",
    "tensor 'x' rank mismatch. expected 2, actual 3": "rank",
    "0/0: 2 <= L['x'].size()[0]  # y = x # model.py:3 in f": "size 0 or 1",
    "L['x'].size()[0] == L['y'].size()[1]  # duck sizing": "equal sizes",
    "2 <= L['x'].size()[0] and L['x'].size()[0] <= 8": "condition on a size",
    "n == 2 # return x * n # model.py:18 in f": "value",
    "L['self'].training == True": "training",
    "len(L['xs']) == 2": "length",
    "___check_obj_id(L['f'], 1234), type=function": "object",
    "GLOBAL_STATE changed: grad_mode": "grad_mode",
    "L['mask'] is None": "type",
    "something else": "other",
}


@pytest.mark.parametrize("reason", GUARDS)
def test_kinds_of_guards_ignore_names_and_values(reason: str) -> None:
    assert error_text.kind_of_guard(reason) == GUARDS[reason]


def test_message_of_a_recursion_error_ignores_its_place() -> None:
    message = "maximum recursion depth exceeded"
    for place in ("in comparison", "while calling a Python object"):
        assert error_text.without_values(f"{message} {place}") == message
