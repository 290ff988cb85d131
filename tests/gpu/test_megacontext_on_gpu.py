"""megacontext's nets as CUDA graphs: replayed, none skipped, answers those of eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from torchproof.checking import rules
from torchproof.observe import audit
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.records.run import Finding
from torchproof.runtime.steps import StepError, step
from torchproof.runtime.steps.step_counts import Counts
from torchproof.targets.target import parse
from torchproof.targets.workloads import megacontext
from torchproof.torch_private import step_marks as trees

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

SIZE = megacontext.SIZES["tiny"]
PASSES = 4  # warm-up, recording, and two replays of each shape


@pytest.fixture(autouse=True, scope="module")
def counted() -> Iterator[None]:
    """Caches are left alone: code that was compiled once is only recorded anew."""
    torch.compiler.reset()
    step.reset()
    yield
    torch.compiler.reset()


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def skips() -> int:
    return int(counters["inductor"]["cudagraph_skips"])


def nodes() -> int:
    """Graphs recorded on this device."""
    manager = torch._inductor.cudagraph_trees.get_manager(0, False)
    todo = [node for found in manager.roots.values() for node in found]
    count = 0
    while todo:
        node = todo.pop()
        count += 1
        todo += [child for found in node.children.values() for child in found]
    return count


# -- training --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Passes over three widths and a smaller batch, the last ones compared."""
    counters.clear()
    step.reset()
    model, calls = megacontext.make(device="cuda", train=True)
    plain, _ = megacontext.make(device="cuda", train=True, compiled=False)
    model, plain = model.float(), plain.float()  # so that rounding explains little
    results: dict[str, Any] = {"apart": [], "nodes": []}
    for number in range(PASSES):
        for index, call in enumerate([calls[0], calls[4], calls[9], calls[-1]]):
            stance = "fail_on_recompile" if number or index else "default"
            with torch.compiler.set_stance(stance):
                found = answers(model, call)
            with torch.compiler.set_stance("force_eager"):
                results["apart"] += map(apart, found, answers(plain, call))
        results["nodes"].append(nodes())
    results |= {"skips": skips(), "stats": step.stats().training}
    for _ in range(3):  # gradients that add up over two micro-steps
        found = answers(model, calls[0], calls[9])
    theirs = answers(plain, calls[0], calls[9])
    results["apart when added up"] = list(map(apart, found, theirs))
    return results


def answers(model: nn.Module, *calls: Any) -> list[Tensor]:
    """Copies of outputs and gradients."""
    model.zero_grad(set_to_none=True)
    for call in calls:
        output = model(*call)
        output.loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [each.detach().clone() for each in (*output, *gradients)]


def test_training_equals_eager_and_every_graph_is_recorded_once(
    trained: dict[str, Any],
) -> None:
    assert max(trained["apart"]) < 5e-3
    assert max(trained["apart when added up"]) < 5e-3
    assert trained["skips"] == 0
    # Two GistNet forwards, and for each of three widths two forwards, four backwards.
    assert 0 < trained["nodes"][-1] == trained["nodes"][-2] <= 2 + 3 * 6
    counts, steps = trained["stats"], PASSES * 4
    assert (counts.steps, counts.marks, counts.calls) == (steps, steps, 4 * steps)
    assert (counts.clones, counts.reentries) == (3 * steps, steps)


# -- a session -------------------------------------------------------------------------


def run(one: Any, calls: Any) -> list[Tensor]:
    one.restart()
    return [one(*call) for call in calls]


def test_a_session_equals_eager() -> None:
    counters.clear()
    session, calls = megacontext.make(device="cuda")
    for _ in range(3):  # its graphs are recorded
        run(session, calls)
    plain, calls = megacontext.make(device="cuda", compiled=False)
    plain.load_state_dict(session.state_dict())
    with torch.compiler.set_stance("fail_on_recompile"):
        ours = run(session, calls)
    theirs = run(plain, calls)
    distances = [apart(a, b) for a, b in zip(ours, theirs, strict=True)]
    assert session.context.entries == plain.context.entries
    assert max(distances) < 0.05
    assert skips() == 0


# -- steps -----------------------------------------------------------------------------


def made() -> Any:
    """A net that saves something of its own for its backward."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    return torch.compile(model, mode="reduce-overhead")


@pytest.fixture(scope="module")
def net() -> Any:
    return made()


def twice(net: Any, between: Callable[[], None]) -> Counts:
    """Two forwards and one backward, as GistNet for two levels; what was counted."""
    with step() as begun:
        first = begun.run(net, torch.ones(8, 64, device="cuda"))
        between()
        begun.run(net, first.clone()).sum().backward()
    net.zero_grad(set_to_none=True)
    return begun.counts


def test_two_forwards_before_one_backward(net: Any) -> None:
    for _ in range(5):
        counts = twice(net, lambda: None)
        assert (counts.calls, counts.reentries, counts.marks) == (2, 1, 1)


def test_a_forward_outside_of_run_is_waited_for(net: Any) -> None:
    for _ in range(5):  # warm-up, recording, replays
        loss = net(torch.ones(8, 64, device="cuda")).sum()
        assert trees.pending_forward() is not None
        with pytest.raises(StepError, match=r"\brun\(\)"), step():
            pass
        loss.backward()
        with step():
            pass
        loss = net(torch.ones(8, 64, device="cuda")).sum()
        del loss  # nobody will run its backward
        with step():
            pass
        net.zero_grad(set_to_none=True)


def test_what_is_saved_is_not_recorded_over() -> None:
    """A graph that is recorded behind a replay leaves what that saved alone."""
    first, second = made(), made()
    x = torch.randn(8, 64, device="cuda")
    for _ in range(3):
        with step() as begun:
            begun.run(first, x).square().sum().backward()
        first.zero_grad(set_to_none=True)
    for number in range(6):
        y = torch.randn(16 + 8 * (number // 2), 64, device="cuda")  # to be recorded
        gradients = []
        for stance in ("default", "force_eager"):
            first.zero_grad(set_to_none=True)
            second.zero_grad(set_to_none=True)
            with torch.compiler.set_stance(stance), step() as begun:
                loss = begun.run(first, x).square().sum()
                (loss + begun.run(second, y).square().sum()).backward()
            gradients.append([p.grad.clone() for p in first.parameters()])
        assert max(map(apart, *gradients)) < 1e-3


# -- check ----------------------------------------------------------------------------

CONTROLS = Path(__file__).parent.parent / "workloads" / "megacontext_controls.py"


def audited(factory: str, *, train: bool) -> tuple[list[Finding], dict[str, Any]]:
    options = Options(train=train, device="cuda")
    run = audit.audit(parse(f"{CONTROLS}:{factory}"), options, lambda text: None)
    assert run.status.status != "failed", run.status.why
    found = rules.check(Observation(run.events, run.environment))
    for finding in found:
        print(finding.code, finding.severity, finding.line, finding.message)
    return [f for f in found if f.severity != "low"], run.counts


@pytest.mark.parametrize(
    ("factory", "train", "kind"),
    [
        ("make_trained", True, None),
        ("make_skipped", True, "cudagraph_skip"),
        ("make_marked", True, "cudagraph_lifetime"),
        ("make_held", False, "cudagraph_lifetime"),
    ],
)
def test_check_finds_the_broken_rule_alone(
    factory: str, train: bool, kind: str | None
) -> None:
    found, counts = audited(factory, train=train)
    if kind is None:
        assert found == [] and counts["cudagraph_recordings"] > 0
    else:
        assert kind in {f.kind for f in found if f.severity == "high"}
    assert (counts["cudagraph_skips"] > 0) is (kind == "cudagraph_skip")
