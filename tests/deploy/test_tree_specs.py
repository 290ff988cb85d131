"""Structures of calls and outputs: written as JSON, rebuilt, compared."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from torchproof.records import schema
from torchproof.torch_private import Structure, Unfit, tree_specs

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: torch.Tensor
    pair: Pair


X, Y = torch.ones(2), torch.zeros(3)
VALUE = {
    "a": [X, (1, None, torch.Size([4]))],
    "b": Output(Y, Pair(float("inf"), "text")),
    "c": OrderedDict({3: True}),
}


def written(value: Any) -> tuple[Structure, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    structure = tree_specs.flatten(value, tensors, "it")
    text = json.dumps(schema.to_plain(structure))
    again = schema.build(Structure, json.loads(text))
    again.assert_valid(len(tensors))
    return again, tensors


def test_a_value_is_rebuilt_without_its_classes() -> None:
    structure, tensors = written(VALUE)
    assert tensors[0] is X and tensors[1] is Y
    again = structure.rebuild(tensors)
    assert again["a"] == [X, (1, None, (4,))] and again["c"] == {3: True}
    assert again["b"].logits is Y and again["b"][0] is Y
    assert tuple(again["b"].pair[:]) == (float("inf"), "text")
    assert structure.has_records and not written([X])[0].has_records


def changed(**parts: Any) -> dict[str, Any]:
    return {**VALUE, **parts}


DIFFERENT = {
    r"it\['a'\]\[1\]\[0\] is 2\b.*\b1\b": changed(a=[X, (2, None, (4,))]),
    r"it\['a'\]\[1\]\[0\] is True\b.*\b1\b": changed(a=[X, (True, None, (4,))]),
    r"it\['a'\]\[0\] is a int\b.*\btensor\b": changed(a=[1, (1, None, (4,))]),
    r"it has no \['a'\]\[1\]\[2\]\[0\]": changed(a=[X, (1, None, ())]),
    r"it has \['d'\]": changed(d=1),
    r"\blist\b.*\btuple\b": changed(a=(X, (1, None, (4,)))),
    r"\bdict\b": changed(b={"logits": Y, "pair": Pair(float("inf"), "text")}),
    r"\bset\b": changed(c={3}),
}


def test_another_value_fits_only_if_it_has_the_same_structure() -> None:
    structure, _ = written(VALUE)
    other = torch.full((2,), 7.0)
    turned = dict(reversed(changed(a=[other, (1, None, (4,))]).items()))
    assert structure.tensors_of(turned, "it")[0] is other
    for why, value in DIFFERENT.items():
        with pytest.raises(Unfit, match=why):
            structure.tensors_of(value, "it")
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, {(1, 2): X}, {"a": object()}):
        with pytest.raises(Unfit):
            written(value)
