"""What a graphed step answers: what the step itself would, whatever has changed."""

import torch
from torch import nn

import torchproof


def net(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)
    )


def test_a_replay_answers_as_the_model_does() -> None:
    model = net().eval()
    graphed = torchproof.graph(model, (torch.randn(3, 4),))
    for _ in range(4):
        x = torch.randn(3, 4)
        torch.testing.assert_close(graphed(x), model(x).detach())
    status = graphed.status()
    assert (status.calls, status.replays, status.recordings) == (4, 4, 1)
    assert status.stops == ()


def test_answers_survive_the_next_replay() -> None:
    model = net().eval()
    graphed = torchproof.graph(model)
    first = graphed(torch.ones(3, 4))
    kept = first.clone()
    graphed(torch.zeros(3, 4))
    assert torch.equal(first, kept)
    raw = torchproof.graph(model, outputs="buffers")
    one = raw(torch.ones(3, 4))
    other = raw(torch.zeros(3, 4))
    assert one is other


def test_weights_changed_in_place_are_seen() -> None:
    model = net().eval()
    x = torch.randn(3, 4)
    graphed = torchproof.graph(model, (x,))
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(graphed(x), model(x).detach())
    assert graphed.status().recordings == 1


def test_replaced_parts_lead_to_another_recording() -> None:
    model = net().eval()
    x = torch.randn(3, 4)
    graphed = torchproof.graph(model, (x,))
    graphed(x)
    model[0].weight = nn.Parameter(torch.randn(8, 4))
    torch.testing.assert_close(graphed(x), model(x).detach())
    model[3] = nn.Linear(8, 2)
    torch.testing.assert_close(graphed(x), model(x).detach())
    model.double()
    y = x.double()
    torch.testing.assert_close(graphed(y), model(y).detach())
    status = graphed.status()
    assert status.recordings == 4
    assert any("0.weight" in change for change in status.changes)


def test_every_shape_has_a_recording() -> None:
    model = net().eval()
    graphed = torchproof.graph(model)
    for size in (1, 3, 1, 3, 5):
        x = torch.randn(size, 4)
        torch.testing.assert_close(graphed(x), model(x).detach())
    status = graphed.status()
    assert status.recordings == 3
    assert [bucket.shapes for bucket in status.buckets] == [
        ("1x4",),
        ("3x4",),
        ("5x4",),
    ]


def test_train_and_eval_have_recordings_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    twin.load_state_dict(model.state_dict())
    graphed = torchproof.graph(model)
    for training in (True, False, True, False):
        model.train(training)
        twin.train(training)
        x = torch.randn(3, 4)
        torch.testing.assert_close(graphed(x), twin(x).detach())
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
    assert graphed.status().recordings == 2


def test_dropout_draws_fresh_numbers() -> None:
    model = net(dropout=0.5).train()
    x = torch.randn(64, 4)
    graphed = torchproof.graph(model, (x,))
    first, second = graphed(x), graphed(x)
    assert not torch.equal(first, second)
    assert graphed.status().buckets[0].verdict == "random"


def test_an_example_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    torchproof.graph(model, (torch.randn(3, 4, generator=torch.Generator()),))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), random)


def test_changed_arguments_are_given_back() -> None:
    def step(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    graphed = torchproof.graph(step)
    cache = torch.zeros(3)
    for times in (1, 2, 3):
        answer = graphed(torch.ones(3), cache)
        assert torch.equal(cache, torch.full((3,), float(times)))
        assert torch.equal(answer, cache * 2)
