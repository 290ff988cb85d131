"""A callback that compiles the model of a `transformers.Trainer` and logs what happens.

trainer = Trainer(model=model, args=args, train_dataset=dataset)
trainer.add_callback(CompileCallback(trainer, deadline=300))
trainer.train()
"""

from __future__ import annotations

from typing import Any

from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging

from torchproof import runtime
from torchproof.integrations.compile_metrics import (
    compile_metrics,
    is_switched_off,
    status_of,
)

_log = logging.get_logger("transformers.torchproof")


class CompileCallback(TrainerCallback):
    """Compiles the model when training begins; options are those of `compile`.

    Graph breaks, recompiles, fallbacks and compile seconds are logged with
    `trainer.log`, at the steps at which the trainer logs, and at the end. The reasons
    are in `torchproof.status(trainer.model)`, which the logger of transformers gets at
    the end, as a warning if something fell back to eager.
    """

    def __init__(self, trainer: Trainer, **options: Any) -> None:
        self._trainer = trainer
        self._options = options
        self._compiled: Any = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        # Not earlier: for mixed precision, accelerate replaces the model's forward
        # while the trainer prepares to train, and the compiled one with it.
        model = kwargs["model"]
        if self._compiled is not model or status_of(model) is None:
            self._compiled = runtime.compile(model, **self._options)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if control.should_log:
            self._log()
            # `Trainer.log` takes it for done, and would leave out the loss.
            control.should_log = True

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        self._log()
        status = status_of(self._compiled)
        if status is not None:
            write = _log.warning if status.fallbacks else _log.info
            write("%s", status)
        elif not is_switched_off():
            _log.warning("%s", runtime.uncompiled_reason(self._compiled))

    def _log(self) -> None:
        if metrics := compile_metrics([self._compiled]):
            self._trainer.log(metrics)
