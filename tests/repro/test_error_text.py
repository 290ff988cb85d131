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


def test_reasons_are_read_and_compared() -> None:
    printing = error_text.reason_of(BREAK)
    kind = "Failed to trace builtin operator"
    assert printing == {"type": kind, "id": "GB0059", "names": ["print"]}
    introduction = "Encountered graph break when attempting to trace CALL: a call:\n\n"
    assert error_text.reason_of(introduction + BREAK) == printing
    # One id is not enough where another builtin is called, but a repro may rename what
    # is the user's.
    opening, one, other = (
        error_text.reason_of(BREAK.replace("`print`", f"`{name}`"))
        for name in ("open", "my_function", "g")
    )
    assert error_text.is_same_reason(printing, printing)
    assert not error_text.is_same_reason(opening, printing)
    assert error_text.is_same_reason(other, one)
    # The reason before a second one counts.
    text = BREAK.replace("gb0059", "gb0001") + f"\n{error_text._NESTED}\n\n{BREAK}"
    assert error_text.reason_of(text)["id"] == "GB0001"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (
            "Dynamo failed to run FX node: call_method view(*(FakeTensor("
            "size=(3, 8)), -1, 7), **{}): got RuntimeError(\"shape '[-1, 7]' is invalid"
            ' for input of size 24")',
            *("shape NAME is invalid for input of size N", True),
        ),
        (
            "/home/ada/x.py:12: bad 0x7f tensor [2, 3]",
            "PATH:3: bad 0x1 tensor [1]",
            True,
        ),
        (
            "backend='a' raised:\nValueError: no",
            "backend=NAME raised: ValueError: no",
            1,
        ),
        ("bad\n\nSet TORCHDYNAMO_VERBOSE=1 for", "bad Set TORCHDYNAMO_VERBOSE", True),
        ("expected L['x'] to be 3", "expected L['y'] to be 4", True),
        ("no rule for a::b. Use `b.rule` now", "no rule for c::d. Use `b...", True),
        ("no gradient of shop.sell.default", "no gradient of NAME", True),
        ("got ValueError('shape is bad')", "got ValueError('index is bad')", False),
        ("no kernel for aten.sin", "no kernel for aten.cos", False),
        ("missing 'torch.sin'", "missing 'torch.cos'", False),
        ("no gradient of aten.sin.default", "no gradient of aten.cos.default", False),
        ("", "anything", False),
    ],
)
def test_messages_of_one_failure_differ_in_values_only(
    one: str, other: str, is_same: bool
) -> None:
    assert error_text.is_same_message(one, other) == is_same


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


def test_kinds_of_guards_ignore_names_and_values() -> None:
    assert {each: error_text.kind_of_guard(each) for each in GUARDS} == GUARDS


def test_message_of_a_recursion_error_ignores_its_place() -> None:
    message = "maximum recursion depth exceeded"
    for place in ("in comparison", "while calling a Python object"):
        assert error_text.without_values(f"{message} {place}") == message
