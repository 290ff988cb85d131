"""A trace is packed where it holds for every input, else refused with its line."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import packages
import pytest
import torch
from torch import nn

import torchproof
from torchproof.packs import Unverified
from torchproof.runtime.loading.pack_details import PackageDetails

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 40).view(5, 8)


class Pair(NamedTuple):
    first: torch.Tensor
    rows: int


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any, mask: Any = None, *, scale: float = 1.0) -> Any:
        y = self.two(self.drop(torch.relu(self.one(x)))) * scale
        if mask is not None:
            y = y * mask
        return {"y": y, "nested": (y.sum(), [y + 1]), "pair": Pair(y, x.shape[0])}


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Where(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.where(x.sum() > 0, x + 1, x - 1)


class Ternary(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if torch.equal(x, x.abs()) else x


class Rare(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.mean() == 123.25:
            return x
        return x * 2


class Repaired(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.isnan().any():
            x = x.nan_to_num()
        return x * 2


class Number(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * x.max().item()


class Checked(nn.Module):
    def forward(self, x: Any) -> Any:
        assert x.abs().max() < 1e30, "too large"
        return x * 2


class Shortcut(nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        if mask.all():
            return x * 1.0
        return torch.where(mask, x, x * 1.0)


class Unrolled(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x[0]
        for i in range(x.shape[0]):
            y = y + x[i] * i
        return y


class BySize(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.shape[0] > 512 else x + 0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return x + self.seen


class Writing(nn.Module):
    def forward(self, x: Any) -> Any:
        x.add_(1)
        return x.sum(0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: Any) -> Any:
        return self.layer(self.table(ids))


def build(folder: Path, fn: Any, *calls: Any) -> PackageDetails:
    return packages.built(folder, packages.loaded(fn, *calls), "torchscript")


@pytest.mark.parametrize(
    ("model", "line", "values"),  # the kind of values that shows the branch
    [
        (Branch(), "if x.sum() > 0", ""),
        (Ternary(), "torch.equal(x, x.abs())", "positive values"),
        (Rare(), "if x.mean() == 123.25", ""),
        (Repaired(), "if x.isnan().any()", "values with NaN"),
        (Number(), "x.max().item()", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_a_branch_on_values_is_refused_with_its_line(
    tmp_path: Path, model: nn.Module, line: str, values: str
) -> None:
    with pytest.raises(Unverified) as refused:
        build(tmp_path, model, (X,))
    told = str(refused.value)
    assert "test_torchscript_packages.py:" in told and line in told and values in told
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("model", "call"),
    [(Where(), (X,)), (Attention().eval(), (torch.arange(21).view(3, 7),))],
    ids=["where", "attention"],
)
def test_models_without_branches_are_traced(
    tmp_path: Path, model: nn.Module, call: Any
) -> None:
    build(tmp_path, model, call)
    answer = packages.opened(tmp_path)(*call)
    torch.testing.assert_close(answer, model(*call))


def test_a_branch_whose_ways_agree_is_traced_and_told(tmp_path: Path) -> None:
    details = build(tmp_path, Shortcut(), (X, torch.ones(5, 8, dtype=torch.bool)))
    assert any("if mask.all()" in note for note in details.notes)


def test_a_check_that_is_not_in_the_trace_is_told(tmp_path: Path) -> None:
    details = build(tmp_path, Checked(), (X,))
    told = re.compile(r"\btest_torchscript_packages\.py:.*\bcheck\b")
    assert any(told.search(note) for note in details.notes)


def test_sizes_that_the_trace_keeps_are_fixed_and_held_to(tmp_path: Path) -> None:
    build(tmp_path, Unrolled(), (X,))
    deployed = packages.opened(tmp_path)
    wide = torch.ones(5, 3)
    torch.testing.assert_close(deployed(wide), Unrolled()(wide))
    told = torchproof.status(deployed)
    assert (told.artifact, told.device) == ("torchscript", "cpu")
    assert str(told).endswith("takes x float32[5, n1]; n1 is 1 or more"), str(told)
    with pytest.raises(ValueError, match=r"\bx\b.* size 6 .*dimension 0\b.*\b5\b"):
        deployed(torch.ones(6, 8))


def test_calls_of_other_sizes_than_the_trace_keeps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unverified, match=r"for i in range\(x.shape\[0\]\).*call 1"):
        build(tmp_path, Unrolled(), (X,), (torch.rand(6, 8),))


def test_sizes_beyond_a_decision_on_them_are_refused(tmp_path: Path) -> None:
    build(tmp_path, BySize(), (X,))
    with pytest.raises(ValueError, match=r"\bx\b.* size 600 .*dimension 0\b.*\b1 to"):
        packages.opened(tmp_path)(torch.ones(600, 8))


def test_answers_that_change_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unverified, match=r"\.eval\(\)"):
        build(tmp_path, Mlp(), (X,))
    with pytest.raises(Unverified, match=r"\bbuffers\b"):
        build(tmp_path, Counting(), (X,))


def test_state_and_inputs_that_are_written_to(tmp_path: Path) -> None:
    for model in (Stateful(), Writing()):
        folder = tmp_path / type(model).__name__
        folder.mkdir()
        build(folder, model, (X.clone(),))
        deployed = packages.opened(folder)
        for _ in range(2):
            mine, others = X.t().clone().t(), X.clone()
            torch.testing.assert_close(deployed(mine), model(others))
            torch.testing.assert_close(mine, others)


@pytest.mark.slow
def test_a_process_without_the_models_code_gives_the_answers(tmp_path: Path) -> None:
    model = Mlp().eval()
    details = build(tmp_path, model, (X,), (torch.rand(7, 8),))
    assert "test_torchscript_packages" in details.without
    told = packages.asked(tmp_path, "torchscript")
    assert told["ok"] and told["answers"] >= 8
    assert told["max_rel_error"] < 1e-6


def test_a_wrong_answer_is_found(tmp_path: Path) -> None:
    build(tmp_path, Mlp().eval(), (X,))
    asked = torch.load(tmp_path / "questions.pt", weights_only=True)
    asked["questions"][1]["tensors"][0][0, 0] += 0.5
    torch.save(asked, tmp_path / "questions.pt")
    told = packages.asked(tmp_path, "torchscript")
    name = asked["questions"][1]["name"]
    assert not told["ok"] and f"on {name}: output 0: " in told["why"]


def test_the_answer_has_the_form_of_the_models(tmp_path: Path) -> None:
    model = Mlp().eval()
    build(tmp_path, model, {"mask": torch.ones(5, 4), "x": X})
    deployed = packages.opened(tmp_path)
    given, eager = deployed(X, torch.zeros(5, 4)), model(X, torch.zeros(5, 4))
    assert list(given) == list(eager)
    assert isinstance(given["nested"], tuple) and isinstance(given["nested"][1], list)
    assert given["pair"].rows == 5 and given["pair"][1] == 5
    torch.testing.assert_close(given["pair"].first, eager["pair"].first)
    assert not given["y"].requires_grad


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((X.double(),), {}, r"\bx\b.*\bfloat64\b.*\bfloat32\b"),
        ((X[:, :7],), {}, r"\bx\b.* size 7 .*dimension 1\b.*\b8\b"),
        ((X[None],), {}, r"\bx\b.*\b3 dimensions\b.*\b2\b"),
        ((X.to_sparse(),), {}, r"\bx\b.*\bdense\b"),
        ((3,), {}, r"\bx\b.*\b3\b.*\btensor\b"),
        ((X, torch.ones(5, 4)), {}, r"\bmask\b"),
        ((X,), {"scale": 2.0}, r"\bscale\b"),
    ],
)
def test_calls_that_do_not_fit_are_refused(
    mlp: Any, args: Any, kwargs: Any, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        mlp(*args, **kwargs)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("mlp")
    build(folder, Mlp().eval(), (X,))
    return packages.opened(folder)


def test_strides_and_defaults_do_not_matter(mlp: Any) -> None:
    torch.testing.assert_close(mlp(X.t().contiguous().t())["y"], mlp(X)["y"])
    torch.testing.assert_close(mlp(X, None)["y"], mlp(x=X)["y"])
    with pytest.raises(TypeError, match="'x'"):
        mlp()


def test_the_file_tells_no_path_and_no_source(tmp_path: Path) -> None:
    build(tmp_path, Mlp().eval(), (X,))
    with zipfile.ZipFile(tmp_path / "pack" / "model.pt") as file:
        inside = b"".join(file.read(name) for name in file.namelist())
    assert (
        b"test_torchscript_packages.py" not in inside
        and b"y.sum(), [y + 1]" not in inside
    )
