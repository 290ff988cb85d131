"""Load tests: requests arrive on a timetable, and strategies answer them.

`LoadOptions` say what to ask, `timetable.py` when requests arrive, `serving.py` answers
them in the process of a strategy (`worker.py`), and `session.py` runs the strategies,
one after the other. `results.py` turns requests into percentiles and verdicts,
`tail.py` explains slow ones by what `stalls.py` recorded, and `text_generator.py`
generates text, one request at a time.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.measure.loadtest.results import judge_result as judge_result
    from torchproof.measure.loadtest.session import LoadPlan as LoadPlan
    from torchproof.measure.loadtest.session import LoadTestResult as LoadTestResult
    from torchproof.measure.loadtest.session import run_load_test as run_load_test
    from torchproof.measure.loadtest.worker import serve_here as serve_here
    from torchproof.records.load_options import LoadOptions as LoadOptions
    from torchproof.records.load_options import TextOptions as TextOptions
    from torchproof.records.load_options import requests_needed as requests_needed
else:
    __getattr__, __all__ = lazy_exports(__name__)
