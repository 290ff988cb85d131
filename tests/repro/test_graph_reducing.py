"""Graphs shrink to what fails, keep what fails, and stop when time is over."""

import time
from dataclasses import replace

import pytest

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs import cuts, minifier, smaller_shapes
from torchproof.packs.repro.graphs.graph_ir import (
    Function,
    GraphIR,
    Input,
    Line,
    TensorFacts,
    Values,
)
from torchproof.packs.repro.graphs.graph_reducer import reduce_graph
from torchproof.packs.repro.graphs.variants import RecordedGraph, to_candidate, variants

PLAIN = TensorFacts((4, 8), (8, 1), "float32", values=Values("normal", (0.0, 1.0)))


@pytest.fixture(autouse=True)
def own_cuts_alone(monkeypatch):
    """torch's minifier has a test of its own, which needs torch."""
    monkeypatch.setattr(minifier, "minify", lambda *_: None)


def chain(length=40, bad=27):
    """Lines that read each other, one of them the culprit."""
    lines = [Line("f0", "x0 + w0", PLAIN)]
    for at in range(1, length):
        text = f"torch.acosh(f{at - 1})" if at == bad else f"f{at - 1}.sin()"
        lines.append(Line(f"f{at}", text, PLAIN))
    inputs = (Input("x0", PLAIN), Input("w0", PLAIN, role="weight"))
    return GraphIR(inputs, tuple(lines), (f"f{length - 1}", "f3"), calls=3)


def draft_of(sketch):
    return to_candidate(RecordedGraph(sketch, "0/0"))


def soon(seconds=60.0):
    return time.monotonic() + seconds


def has_acosh(draft):
    compile(draft.source, "draft", "exec")
    return "acosh" in draft.source


def test_a_chain_shrinks_to_its_culprit():
    tried = []

    def fails(draft):
        tried.append(draft)
        return has_acosh(draft)

    found = reduce_graph(draft_of(chain()), fails, soon())
    assert found.size == 1
    assert "torch.acosh(x_" in found.source
    assert "class" not in found.source  # no weight is left
    assert "range(3)" not in found.source
    assert len(tried) < 40


def test_what_two_lines_do_together_keeps_both():
    found = reduce_graph(
        draft_of(chain()),
        lambda draft: has_acosh(draft) and "x0 + " in draft.source,
        soon(),
    )
    assert has_acosh(found)
    assert "x0 + " in found.source
    assert found.size == 2


def test_nothing_is_lost_when_everything_matters():
    draft = draft_of(chain())
    assert reduce_graph(draft, lambda other: False, soon()) == draft


def test_after_the_deadline_nothing_is_tried_and_the_smallest_is_kept():
    tried = []

    def slow(draft):
        tried.append(draft)
        time.sleep(0.05)
        return has_acosh(draft)

    draft = draft_of(chain())
    assert reduce_graph(draft, slow, time.monotonic()) == draft
    assert not tried
    found = reduce_graph(draft, slow, soon(0.12))
    assert len(tried) <= 4
    assert found == [other for other in tried if has_acosh(other)][-1]


def test_a_cut_value_becomes_an_input_like_it_and_a_number_stays_one():
    odd = replace(PLAIN, shape=(3,), stride=(1,), values=Values("positive", (2.0, 9.0)))
    lines = (
        Line("size", "x0.size(0)", literal="4"),
        Line("a", "x0.log()", odd),
        Line("b", "a * size", PLAIN),
    )
    sketch = GraphIR((Input("x0", PLAIN),), lines, ("b",))
    cut = cuts.remove_lines(sketch, {"a", "size"})
    assert cut is not None
    assert [line.expression for line in cut.lines] == ["x_a * 4"]
    assert cuts.prune(cut).inputs == (Input("x_a", odd),)
    assert "positive((3,), 2, 9)" in draft_of(cuts.prune(cut)).source


def test_what_cannot_be_an_input_takes_its_readers_along():
    lines = (
        Line("parts", "x0.chunk(2)"),
        Line("first", "parts[0]", PLAIN),
        Line("b", "first.sin()", PLAIN),
    )
    cut = cuts.remove_lines(GraphIR((Input("x0", PLAIN),), lines, ("b",)), {"parts"})
    assert cut is not None
    assert [line.expression for line in cut.lines] == ["x_first.sin()"]
    assert (
        cuts.remove_lines(
            GraphIR((Input("x0", PLAIN),), lines[:2], ("first",)), {"parts"}
        )
        is None
    )


def test_lines_that_act_stay_and_what_only_opens_goes():
    lines = (
        Line("e", "torch.amp.autocast_mode._enter_autocast('cpu')", has_effect=True),
        Line("w", "x0.add_(1)", PLAIN, has_effect=True),
        Line("b", "x0.sin()", PLAIN),
        Line("c", "x0.cos()", PLAIN),
    )
    sketch = cuts.prune(GraphIR((Input("x0", PLAIN),), lines, ("b",)))
    assert [line.name for line in sketch.lines] == ["w", "b"]


def test_graphs_inside_are_put_where_they_are_called():
    inner = Function("part", ("a",), (Line("s", "a.sin()", PLAIN),), "(s,)")
    lines = (
        Line("one", "torch.utils.checkpoint.checkpoint(part, x0, use_reentrant=False)"),
        Line("two", "part(one[0])"),
        Line("out", "two[0]", PLAIN),
    )
    sketch = GraphIR((Input("x0", PLAIN),), lines, ("out",), (inner,))
    found = cuts.prune(cuts.inline(sketch))
    assert not found.functions
    texts = [line.expression for line in found.lines]
    assert texts == ["x0.sin()", "(s_0,)", "one[0].sin()", "(s_1,)", "two[0]"]


def test_sizes_shrink_everywhere_and_indices_stay_below_them():
    table = TensorFacts((50, 8), (8, 1), "float32")
    ids = TensorFacts((2, 3), (3, 1), "int64", values=Values("whole", (0, 49)))
    sketch = GraphIR(
        (Input("x0", ids), Input("w0", table, role="weight")),
        (Line("e", "torch.nn.functional.embedding(x0, w0).view(2, 3, 8)", PLAIN),),
        ("e",),
    )
    assert smaller_shapes.sizes(sketch)[0] in (50, 8)
    fewer = smaller_shapes.shrink(sketch, 50, 4, multiples=False)
    assert fewer.inputs[0].facts.values == Values("whole", (0, 3))
    assert fewer.inputs[1].facts.shape == (4, 8)
    assert fewer.lines[0].facts is None  # it was seen with other sizes
    narrow = smaller_shapes.shrink(sketch, 8, 1, multiples=True)
    assert narrow.lines[0].expression.endswith(".view(2, 3, 1)")
    assert narrow.inputs[1].facts.stride == (1, 1)


def test_a_sketch_survives_json_and_a_draft_its_variants():
    sketch = replace(chain(), contexts=("torch.no_grad()",))
    assert GraphIR.from_json(sketch.to_json()) == sketch
    draft = draft_of(sketch)
    assert isinstance(draft, Candidate)
    assert "@torch.no_grad()" in draft.source
    assert variants(draft) == [draft]  # no values were recorded
