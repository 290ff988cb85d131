"""Renders runs: terminal text, Markdown, HTML, SARIF, annotations, experiment log.

In: a `Run` or a comparison. Out: strings; this package prints nothing. Each verb builds
one document of blocks (`document.py`), each format renders them. Start with
`formats.py`. Imports `records`, `checking`, `measure` and `packs`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.report import cache_folders as cache_folders
    from torchproof.report import load_trace as load_trace
    from torchproof.report import log as log
    from torchproof.report import machine as machine
    from torchproof.report import numbers as numbers
    from torchproof.report import pack as pack
    from torchproof.report import rank_trace as rank_trace
    from torchproof.report import run_trace as run_trace
    from torchproof.report import search_words as search_words
    from torchproof.report.formats import render as render
    from torchproof.report.formats import render_cell as render_cell
    from torchproof.report.formats import render_comparison as render_comparison
    from torchproof.report.formats import render_findings as render_findings
    from torchproof.report.rule_text import rule_list as rule_list
    from torchproof.report.rule_text import rule_page as rule_page
else:
    __getattr__, __all__ = lazy_exports(__name__)
