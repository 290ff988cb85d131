"""A Lightning callback that compiles parts of a module and logs what happens.

trainer = Trainer(callbacks=[CompileCallback("model", deadline=300)])
trainer.fit(module, loader)
"""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer

from torchproof import runtime
from torchproof.integrations.compile_metrics import compile_metrics, status_of


class CompileCallback(Callback):
    """Compiles the named submodules; options are those of `compile`.

    Without a name it compiles the `forward` of the module itself, which helps if
    `training_step` calls `self(...)`. `training_step` is not compiled: it logs, and
    logging splits graphs. Graph breaks, recompiles, fallbacks and compile seconds go to
    the trainer's loggers, every `log_every_n_steps` steps and at the end.
    """

    def __init__(self, /, *submodules: str, **options: Any) -> None:
        self._submodules = submodules
        self._options = options
        self._compiled: list[Any] = []
        self._stepped = 0  # optimizer steps so far
        self._logged = -1  # the last step that was logged

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        names = self._submodules or ("",)
        models = [pl_module.get_submodule(name) for name in names]
        is_other = {id(m) for m in models} != {id(m) for m in self._compiled}
        if is_other or any(status_of(m) is None for m in models):
            self._compiled = [runtime.compile(m, **self._options) for m in models]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stepped = trainer.global_step
        self._logged = _step(trainer) - 1

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        # With accumulated gradients, several batches belong to one step.
        if trainer.global_step == self._stepped:
            return
        self._stepped = trainer.global_step
        every = trainer.log_every_n_steps  # 0 switches it off
        if every and (_step(trainer) + 1) % every == 0:
            self._log(trainer, _step(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer, _step(trainer) - 1)  # the last batch has been counted

    def _log(self, trainer: Trainer, step: int) -> None:
        if step == self._logged:
            return
        self._logged = step
        metrics = compile_metrics(self._compiled)
        for logger in trainer.loggers if metrics else ():
            logger.log_metrics(metrics, step=step)


def _step(trainer: Trainer) -> int:
    """The step under which Lightning logs the losses of the batch that runs.

    `trainer.global_step` would not fit: it counts each of several optimizers.
    """
    step: int = trainer.fit_loop.epoch_loop._batches_that_stepped
    return step
