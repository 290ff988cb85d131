"""Several ranks: starts and observes each one, and joins what they did.

In: a target and how many ranks. Out: `JoinedRanks`. Start with `launch.py` (parent),
`rank_process.py` (one rank) and `joined_ranks.py` (the streams of all).
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.observe.ranks.existing_launch import (
        ExistingLaunch as ExistingLaunch,
    )
    from torchproof.observe.ranks.joined_ranks import JoinedRanks as JoinedRanks
    from torchproof.observe.ranks.launch import Ranks as Ranks
    from torchproof.observe.ranks.launch import assert_launchable as assert_launchable
    from torchproof.observe.ranks.launch import observe_ranks as observe_ranks
    from torchproof.observe.ranks.launched import Place as Place
else:
    __getattr__, __all__ = lazy_exports(__name__)
