import torch
from torch import nn


# AdamW with a scheduler, the step as a method of a trainer.
class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 2)
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def apply(self):
        self.optimizer.step()  # <- RC218, GB105, GB107


def before_call(update, index):
    if index:
        update.trainer.scheduler.step()


def bad_2():
    trainer = Trainer()

    def update():
        trainer.apply()

    update.trainer = trainer
    return update, [()] * 5
