"""`python -m torchproof.observe.audit JOB STREAM`: the child process of the audit."""

from __future__ import annotations

import sys

from torchproof.observe.audit.running import main
from torchproof.process import parent_death

if __name__ == "__main__":
    parent_death.hold()
    sys.exit(main(sys.argv[1:]))
