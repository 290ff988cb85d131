"""Codes of rules that no longer exist, and why each went.

Configurations of CI may ignore them, and saved runs have findings of them.
"""

from __future__ import annotations

RETIRED = {
    "CF103": "A capture of CUDA graphs inside another one raises an error by itself,"
    " which says so.",
    "CF104": "CG301 and CG304 show in a run where a step is not marked.",
    "CF105": "Torch finds the compiled code again, so a repeated torch.compile costs"
    " milliseconds; no published code was found that repeats it.",
    "RC219": "No published code was found that passes a new backend object each time;"
    " RC299 reports the recompile.",
}
