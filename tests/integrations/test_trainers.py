"""The callbacks with the trainers themselves: they train, compile and log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchproof

pytestmark = [
    pytest.mark.slow,
    # What these libraries warn of is theirs.
    pytest.mark.filterwarnings("ignore"),
]
INFINITE = float("inf")  # for a machine on which other tests leave no processor free
NAMES = {"graph_breaks", "recompiles", "fallbacks", "compile_seconds", "compiled_share"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Scorer(nn.Module):
    """Not the model of another test: it would share its code and compile nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x))  # for which Inductor writes a kernel


def figures(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What was logged of torchproof, in order, without its prefix."""
    mine = [{k: v for k, v in row.items() if "torchproof/" in k} for row in history]
    return [
        {k.removeprefix("torchproof/"): v for k, v in row.items()}
        for row in mine
        if row
    ]


def trained(folder: Path, model: nn.Module, **options: Any) -> Any:
    """A trainer after 4 steps; with `plain`, without the callback."""
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    transformers = pytest.importorskip("transformers")
    from torchproof.integrations.transformers import CompileCallback

    torch.manual_seed(0)
    rows = [{"x": torch.randn(4), "labels": torch.tensor(n % 2)} for n in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        disable_tqdm=True,
        learning_rate=0.1,
        logging_steps=options.pop("logging_steps", 2),
        num_train_epochs=1,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    if not options.pop("plain", False):
        trainer.add_callback(CompileCallback(trainer, **options))
    trainer.train()
    return trainer


def losses(rows: list[dict[str, Any]]) -> list[float]:
    return [float(row["loss"]) for row in rows if "loss" in row]


def seeded(kind: type[nn.Module]) -> Any:
    torch.manual_seed(1)
    return kind()


@pytest.fixture
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that Inductor generates code."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()


def fitted(folder: Path, model: nn.Module, **options: Any) -> Any:
    """The module and what was logged after 4 steps; with `plain`, uncompiled."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from lightning.pytorch.loggers import Logger

    from torchproof.integrations.lightning import CompileCallback

    optimizers = options.pop("optimizers", 1)

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            x, labels = batch
            loss = nn.functional.cross_entropy(self.model(x), labels)
            self.log("loss", loss)
            if not self.automatic_optimization:
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
            return loss

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            sgd = torch.optim.SGD
            return [sgd(self.parameters(), lr=0.5) for _ in range(optimizers)]

    class Kept(Logger):  # type: ignore[misc]
        name, version = "kept", 0

        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

        def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
            self.rows.append(dict(metrics) | {"at": step})

    kept, module = Kept(), Module()
    every = options.pop("log_every_n_steps", 2)
    accumulated = options.pop("accumulate_grad_batches", 1)
    plain = options.pop("plain", False)
    module.automatic_optimization = optimizers == 1
    trainer = lightning.Trainer(
        accelerator="cpu",
        accumulate_grad_batches=accumulated,
        callbacks=[] if plain else [CompileCallback("model", **options)],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=every,
        logger=kept,
        max_epochs=1,
    )
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    return module, kept.rows


def steps_of(
    rows: list[dict[str, Any]], name: str = "torchproof/fallbacks"
) -> list[int]:
    return [row["at"] for row in rows if name in row]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [1, 3]),
        ({"optimizers": 2}, [1, 3]),
        ({"log_every_n_steps": 0}, [3]),  # the end
        ({"accumulate_grad_batches": 2, "log_every_n_steps": 1}, [0, 1]),
    ],
)
def test_lightning_logs_at_the_steps_of_the_losses(
    tmp_path: Path, options: dict[str, int], steps: list[int]
) -> None:
    _, rows = fitted(tmp_path, Scorer(), backend="eager", **options)
    assert steps_of(rows) == steps
    assert not options.get("log_every_n_steps", 1) or steps_of(rows, "loss") == steps


def learned_in_transformers(folder: Path, **options: Any) -> tuple[Any, Any]:
    trainer = trained(folder, seeded(Net), logging_steps=1, **options)
    trainer.save_model(str(folder / "saved"))
    return trainer.model, trainer.state.log_history


def learned_in_lightning(folder: Path, **options: Any) -> tuple[Any, Any]:
    module, rows = fitted(folder, seeded(Scorer), log_every_n_steps=1, **options)
    return module.model, rows


@pytest.mark.usefixtures("empty_caches")
@pytest.mark.parametrize("learned", [learned_in_transformers, learned_in_lightning])
def test_a_model_with_inductor_learns_the_same(learned: Any, tmp_path: Path) -> None:
    plain, plain_rows = learned(tmp_path / "a", plain=True)
    model, rows = learned(tmp_path / "b", deadline=INFINITE)
    want = losses(plain_rows)
    assert len(want) == 4 and want[0] != pytest.approx(want[-1], rel=1e-2)
    assert losses(rows) == pytest.approx(want, rel=1e-4)
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight)
    status = torchproof.status(model)
    assert status.compiled_calls == 4 and not status.fallbacks
    assert any(each.in_child for each in status.compilations)
    logged = figures(rows)
    assert len(logged) >= 4 and set(logged[-1]) == NAMES  # at each step
    assert logged[-1]["compiled_share"] == 1 and logged[-1]["fallbacks"] == 0
