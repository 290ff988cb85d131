"""A comparison of dynamic sizes becomes a guard."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.sizes import plain_condition

HEAD = """\
import torch
import torch.nn.functional as F


def step(q, causal=True):
"""
NAMED = """\
    is_causal = q.shape[2] > 1
    return F.scaled_dot_product_attention(q, q, q, is_causal=is_causal)  # <-
"""
DIRECT = """\
    return F.scaled_dot_product_attention(q, q, q, is_causal=(q.size(2) > 1))  # <-
"""


@pytest.mark.parametrize(
    ("lines", "new"),
    [
        (NAMED, "is_causal=True if is_causal else False)"),
        (DIRECT, "is_causal=True if q.size(2) > 1 else False)"),
    ],
)
def test_plain_condition(lines: str, new: str) -> None:
    text = rewritten(plain_condition, program(HEAD + lines)).text
    assert new in text
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    old, edited = function_of(HEAD + lines), function_of(text)
    compiled = torch.compile(edited, backend=backend, fullgraph=True, dynamic=True)
    for length in (5, 7, 9):
        q = torch.randn(2, 2, length, 4)
        assert torch.equal(compiled(q), old(q))
    assert len(graphs) == 1


def test_refuses_other_arguments() -> None:
    lines = (
        "    return F.scaled_dot_product_attention(q, q, q, is_causal=causal)  # <-\n"
    )
    with pytest.raises(Refused, match="no argument"):
        rewritten(plain_condition, program(HEAD + lines))
