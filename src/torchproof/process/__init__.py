"""Child processes: start one, read its stream, end it with its parent.

In: a command. Out: the JSON lines that the child writes, and how it ended.
Start with `streams.py`. Imports psutil and the standard library only.
"""

from torchproof.process import aslr as aslr
from torchproof.process import forks as forks
from torchproof.process import parent_death as parent_death
from torchproof.process.streams import Conditions as Conditions
from torchproof.process.streams import Entry as Entry
from torchproof.process.streams import Followed as Followed
from torchproof.process.streams import Stream as Stream
from torchproof.process.streams import follow as follow

__all__ = [
    "Conditions",
    "Entry",
    "Followed",
    "Stream",
    "aslr",
    "follow",
    "forks",
    "parent_death",
]
