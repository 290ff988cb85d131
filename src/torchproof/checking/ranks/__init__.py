"""Compare what the ranks of a distributed run did, and make findings of it.

In: the events of each rank. Out: a `RankRun` with differences and waits, and findings.
Start with `rank_findings.py`; `alignment.py` says which events belong together.
"""

from torchproof.checking.ranks.rank_findings import CheckedRanks as CheckedRanks
from torchproof.checking.ranks.rank_findings import check_ranks as check_ranks
from torchproof.checking.ranks.rank_findings import compare_ranks as compare_ranks
