"""`python -m torchproof.observe.audit JOB`: the child process of the audit."""

from __future__ import annotations

import sys

from torchproof.observe.audit.running import main
from torchproof.process import hold

if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
