"""Child processes: start one, talk to it, end it with everything it started.

In: a command for Python. Out: its messages, and how it ended. There is one way for each
thing: `spawn` starts a child, a `Channel` carries JSON lines in both directions,
`kill_tree` ends a process with its descendants, `hold` ties a child to its parent,
`follow` reads a child that only reports, a `ForkServer` runs jobs in forks of a process
that has already imported, and `main_definitions` gives a child what it needs of the
main program. Start with `children.py`. Imports the standard
library only.
"""

from torchproof.process import aslr as aslr
from torchproof.process import forks as forks
from torchproof.process import main_definitions as main_definitions
from torchproof.process import parent_death as parent_death
from torchproof.process.channel import Channel as Channel
from torchproof.process.channel import Ended as Ended
from torchproof.process.channel import Garbled as Garbled
from torchproof.process.channel import Message as Message
from torchproof.process.channel import Tick as Tick
from torchproof.process.channel import packed as packed
from torchproof.process.channel import unpacked as unpacked
from torchproof.process.children import DEVNULL as DEVNULL
from torchproof.process.children import Child as Child
from torchproof.process.children import Priority as Priority
from torchproof.process.children import describe as describe
from torchproof.process.children import spawn as spawn
from torchproof.process.cpu_share import CpuShare as CpuShare
from torchproof.process.fork_server import ForkServer as ForkServer
from torchproof.process.fork_server import JobEnding as JobEnding
from torchproof.process.fork_server import serve as serve
from torchproof.process.local_ranks import follows_from_another as follows_from_another
from torchproof.process.local_ranks import rank_variables as rank_variables
from torchproof.process.local_ranks import reserved_port as reserved_port
from torchproof.process.parent_death import hold as hold
from torchproof.process.parent_death import leave as leave
from torchproof.process.streams import Conditions as Conditions
from torchproof.process.streams import Entry as Entry
from torchproof.process.streams import Followed as Followed
from torchproof.process.streams import Stream as Stream
from torchproof.process.streams import follow as follow
from torchproof.process.streams import last_line as last_line
from torchproof.process.thread_frames import frames_of_threads as frames_of_threads
from torchproof.process.trees import kill_tree as kill_tree
from torchproof.process.trees import tree as tree
