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
        scores: torch.Tensor = self.linear(x)
        return scores


class Breaks(Net):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        torch._dynamo.graph_break()
        return super().forward(x, labels)


def failing(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no code today")


def figures(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What was logged of torchproof, in order, without its prefix."""
    mine = [{k: v for k, v in row.items() if "torchproof/" in k} for row in history]
    return [
        {k.removeprefix("torchproof/"): v for k, v in row.items()}
        for row in mine
        if row
    ]


def trained(folder: Path, model: nn.Module, **options: Any) -> Any:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    transformers = pytest.importorskip("transformers")
    from torchproof.integrations.transformers import CompileCallback

    row = {"x": torch.randn(4), "labels": torch.tensor(1)}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        bf16=options.pop("bf16", False),
        disable_tqdm=True,
        logging_steps=2,
        num_train_epochs=1,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=[row] * 8)
    trainer.add_callback(CompileCallback(trainer, **options))
    trainer.train()
    return trainer


@pytest.mark.parametrize("bf16", [False, True])
def test_transformers_trains_compiled_and_logs(tmp_path: Path, bf16: bool) -> None:
    torch.compiler.reset()  # a second model of the class would share code
    trainer = trained(tmp_path, Net(), backend="eager", bf16=bf16)
    logged = figures(trainer.state.log_history)
    assert len(logged) == 3  # steps 2 and 4, and the end
    assert set(logged[-1]) == NAMES
    assert logged[-1]["compiled_share"] == 1 and logged[-1]["fallbacks"] == 0
    status = torchproof.status(trainer.model)
    assert status.calls == 4 == status.compiled_calls
    trainer.save_model(str(tmp_path / "saved"))
    assert set(trainer.model.state_dict()) == {"linear.weight", "linear.bias"}


def test_transformers_logs_a_fallback_and_goes_on(tmp_path: Path) -> None:
    trainer = trained(tmp_path, Breaks(), backend=failing)
    last = figures(trainer.state.log_history)[-1]
    assert last["fallbacks"] > 0 and last["compiled_share"] < 1
    assert trainer.state.global_step == 4


def test_lightning_trains_compiled_and_logs(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from lightning.pytorch.loggers import Logger

    from torchproof.integrations.lightning import CompileCallback

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Scorer()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            x, labels = batch
            loss = nn.functional.cross_entropy(self.model(x), labels)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Kept(Logger):  # type: ignore[misc]
        name, version = "kept", 0

        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

        def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
            self.rows.append(dict(metrics))

    kept, module = Kept(), Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        callbacks=[CompileCallback("model", backend="eager")],
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=2,
        logger=kept,
        max_epochs=1,
    )
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.ones(8).long())
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    logged = figures(kept.rows)
    assert len(logged) == 3 and set(logged[-1]) == NAMES
    assert logged[-1]["compiled_share"] == 1
    assert torchproof.status(module.model).compiled_calls == 4
    assert set(module.state_dict()) == {"model.linear.weight", "model.linear.bias"}
