"""A recorded graph runs as torch code, and holds nothing of the user's."""

import functools

import graph_programs as programs
import pytest
import torch
from graph_programs import made, recorded

from torchproof.packs.repro.graphs.graph_reducer import variants

# What torch says of its own doing while it traces is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore")

WITHOUT_WEIGHTS = ("own_function", "indexed")
PROGRAMS = [*WITHOUT_WEIGHTS, "checkpointed", "regions"]
# Recorded graphs run uncompiled, so that no backend matters.
compiled = functools.partial(torch.compile, backend="eager")


def tensors(value):
    listed = value if isinstance(value, tuple | list) else (value,)
    return [part for part in listed if part is not None]


def assert_compiles_as_it_runs(draft, folder):
    """Dynamo traces it again in one graph, and gives what eager gives."""
    answers = []
    for wrap in (False, True):
        torch._dynamo.reset()
        fn, calls = made(draft, folder)
        fn = torch.compile(fn, fullgraph=True, backend="eager") if wrap else fn
        torch.manual_seed(1)
        answers.append(tensors(fn(*calls[0])))
    assert len(answers[0]) == len(answers[1])
    for eager, answer in zip(*answers, strict=True):
        torch.testing.assert_close(answer, eager, equal_nan=True)
    return answers[0]


def block_drafts(tmp_path, **options):
    torch.manual_seed(0)
    model = programs.Attention()
    ids, scale = torch.randint(0, 50, (2, 8)), torch.randn(16, 8)
    drafts, refused = recorded(
        lambda: compiled(model, dynamic=options.pop("dynamic", None))(ids, scale),
        tmp_path,
        **{k: v for k, v in options.items() if k == "weights"},
    )
    assert not refused
    return model, ids, drafts[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_draft_traces_again_and_gives_what_eager_gives(name, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(16, 8, requires_grad=name in ("checkpointed", "own_function"))
    program = getattr(programs, name)
    drafts, refused = recorded(lambda: compiled(program)(x), tmp_path)
    assert not refused
    to_candidate, real = variants(drafts[0])
    assert_compiles_as_it_runs(to_candidate, tmp_path)
    answers = assert_compiles_as_it_runs(real, tmp_path)
    if name in WITHOUT_WEIGHTS:
        for found, wanted in zip(answers, tensors(program(x)), strict=True):
            torch.testing.assert_close(found, wanted)


def test_names_and_weights_of_the_user_are_left_out_by_default(tmp_path):
    model, ids, draft = block_drafts(tmp_path / "without")
    for text in (draft.source, str(draft.record).replace(str(tmp_path), "")):
        assert "private" not in text and "Attention" not in text
    assert [sorted(other.files) for other in variants(draft)] == [
        [],
        ["x0.pt", "x1.pt"],
    ]
    _, _, draft = block_drafts(tmp_path / "with", weights=True)
    last = list(variants(draft))[-1]
    assert "weights" in last.about
    fn, calls = made(last, tmp_path)
    assert torch.equal(calls[0][0], ids)
    assert torch.equal(fn.w0, model.private_table.weight)


def test_inputs_are_as_they_were_seen(tmp_path):
    base = torch.randn(40)
    ids = torch.randint(3, 7, (50,))

    def run(x, ids, wide):
        return x.sum() + ids.sum() + wide.sum()

    inputs = (base[:24].view(4, 6).t().requires_grad_(), ids, base[30:31].expand(5))
    drafts, _ = recorded(lambda: compiled(run)(*inputs), tmp_path)
    for draft in variants(drafts[0]):
        _, calls = made(draft, tmp_path)
        for found, wanted in zip(calls[0], inputs, strict=True):
            assert found.stride() == wanted.stride()
            assert found.shape == wanted.shape
            assert found.dtype == wanted.dtype
            assert found.requires_grad == wanted.requires_grad
        assert 3 <= calls[0][1].min() <= calls[0][1].max() <= 6
    assert torch.equal(calls[0][0], inputs[0])


def test_inputs_that_share_memory_share_it_in_the_draft(tmp_path):
    def run(x, y):
        x.add_(1)
        return y * 2

    base = torch.randn(40)
    drafts, _ = recorded(lambda: compiled(run)(base[:20], base[10:30]), tmp_path)
    _, [(x, y)] = made(drafts[0], tmp_path)
    x.zero_()
    assert y[:10].abs().sum() == 0
    assert y[10:].abs().sum() > 0
    drafts, _ = recorded(
        lambda: compiled(run)(base[:20].clone(), base[10:30].clone()), tmp_path
    )
    assert "memory" not in drafts[0].source


def test_sizes_that_were_symbols_are_marked(tmp_path):
    _, _, draft = block_drafts(tmp_path / "dynamic", dynamic=True)
    assert "maybe_mark_dynamic(x0, 0)" in draft.source
    # Before, a graph with autocast is not traced again.
    if torch.__version__ >= (2, 13):
        assert_compiles_as_it_runs(draft, tmp_path)
    _, _, draft = block_drafts(tmp_path / "static", dynamic=False)
    assert "mark_dynamic" not in draft.source


def test_a_graph_runs_under_what_it_was_called_under(tmp_path):
    weight = torch.nn.Parameter(torch.randn(4))
    weight.grad = torch.randn(4)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    drafts, _ = recorded(lambda: compiled(optimizer.step)(), tmp_path)
    assert "@torch.no_grad()" in drafts[-1].source
    fn, calls = made(drafts[-1], tmp_path)
    before = fn.w0.detach().clone()
    fn(*calls[0])
    assert not torch.equal(fn.w0, before)


def test_what_torch_alone_lacks_is_refused_with_the_reason(tmp_path):
    with torch.library._scoped_library("privatelib", "FRAGMENT") as library:
        library.define("shift(Tensor x) -> Tensor")
        library.impl("shift", lambda x: x + 1, "CompositeExplicitAutograd")
        library.impl("shift", lambda x: torch.empty_like(x), "Meta")

        def run(x):
            return torch.ops.privatelib.shift(x) * 2

        drafts, refused = recorded(lambda: compiled(run)(torch.ones(3)), tmp_path)
    assert not drafts
    (why,) = refused
    assert why.startswith("graph 0/0: ") and "custom operator" in why
