"""`python -m torchproof.audit JOB STREAM`: the child process of the audit."""

from __future__ import annotations

import sys

from torchproof.audit.running import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
