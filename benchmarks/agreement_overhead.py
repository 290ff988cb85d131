"""What a call of `torchproof.compile` takes longer because ranks decide together.

Two ranks with gloo compile the same module twice: before there is a process group, and
under it. Guard collectives are on in the first call of the latter, so the ranks decide
about it together, and a thread of each looks at the store. Later calls contain no
collective: rank 0 times both modules as `call_overhead` does, and rank 1 waits.

    python -m benchmarks.agreement_overhead [--pairs 300] [--write]

Exit code 1 when a call takes more than 5 us longer, 2 when the machine is too busy to
say.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import torchproof
from benchmarks import call_overhead

LIMIT_US = 5.0
RANKS = 2
HERE = Path(__file__).resolve().parent


def measure(rank: int, port: int, count: int) -> dict[str, Any] | None:
    """The numbers on rank 0; None on the others, or if the machine is too busy."""
    alone, together = (
        torchproof.compile(_with_own_code(), backend="eager") for _ in range(2)
    )
    pair = call_overhead.Pair(bare=alone, ours=together)
    numbers = None
    with torch.no_grad():
        x = torch.ones(2, 4)
        alone(x)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
        )
        torch.compiler.set_enable_guard_collectives(True)
        together(x)
        torch.compiler.set_enable_guard_collectives(False)
        status = torchproof.status(pair.ours)
        assert status.ranks is not None and status.ranks["decides_with"], str(status)
        if rank == 0:
            batches = call_overhead.measure(pair, count)
            if len(batches["bare"]) >= call_overhead.FEWEST:
                numbers = call_overhead.summary(batches)
            status = torchproof.status(pair.ours)
            assert status.compiled_calls == status.calls, str(status)
            assert status.ranks is not None and status.ranks["alone"] is None
    dist.barrier()
    dist.destroy_process_group()
    return numbers


def _with_own_code() -> nn.Module:
    """Models of one class would share the list of code that each call goes through."""
    forward = call_overhead.of_its_own(call_overhead.Net.forward)
    net: nn.Module = type("Net", (call_overhead.Net,), {"forward": forward})()
    return net


def launch(count: int) -> dict[str, Any] | None:
    """Starts the ranks and returns what rank 0 measured."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    module = "benchmarks.agreement_overhead"
    command = [sys.executable, "-m", module, "--pairs", str(count)]
    ranks = [
        subprocess.Popen(
            [*command, "--port", str(port), "--rank", str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank failed: {[rank.returncode for rank in ranks]}")
    numbers: dict[str, Any] | None = json.loads(outputs[0])
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        print(json.dumps(measure(arguments.rank, arguments.port, arguments.pairs)))
        return 0
    numbers = launch(arguments.pairs)
    if numbers is None:
        print("too few undisturbed pairs", file=sys.stderr)
        return 2
    added, ratio = numbers["added_us"], numbers["ratio"]
    print(
        f"alone {numbers['bare_us']:.2f} us, added {added['quiet']:.2f} us; middle half"
        f" {added['low_quarter']:.2f} to {added['high_quarter']:.2f}, ratio"
        f" {ratio['value']:.3f}, {numbers['pairs']} pairs"
    )
    if arguments.write:
        report = {
            "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
            "real_time": os.sched_getscheduler(0) == os.SCHED_FIFO,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "ranks": RANKS,
            "call": numbers,
            "limit_us": LIMIT_US,
        }
        path = HERE / "results" / f"agreement-overhead-{platform.machine()}.json"
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return int(added["quiet"] > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
