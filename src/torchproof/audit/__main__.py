"""`python -m torchproof.audit JOB STREAM`: the child process of the audit."""

from __future__ import annotations

import sys

from torchproof import lifeline
from torchproof.audit.running import main

if __name__ == "__main__":
    lifeline.hold()
    sys.exit(main(sys.argv[1:]))
