import torch


# A dictionary whose keys change from batch to batch.
def multi_task(batch):
    return {name: x * 2 for name, x in batch.items()}  # <- RC212


def bad():
    return multi_task, [({name: torch.randn(2, 4) for name in names},) for names in ("ab", "ac", "bc")]
