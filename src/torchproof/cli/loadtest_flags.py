"""The flags of `loadtest`."""

from __future__ import annotations

import argparse

from torchproof.cli import flags


def loadtest_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="workload:NAME, file.py:factory, package.module:factory",
    )
    _load_flags(parser)
    _serving_flags(parser)
    _text_flags(parser)
    flags.run_flags(parser)
    flags.output_flags(parser)
    parser.add_argument(
        "--baseline",
        metavar="RUN",
        help="exit 1 if a strategy is worse than in RUN, a load test of the same load",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="also write the timeline as trace events, for Perfetto",
    )


def _load_flags(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--rate", type=float, metavar="R", help="requests per second, on average"
    )
    load.add_argument(
        "--arrivals",
        metavar="KIND",
        default="poisson",
        help=(
            "poisson, constant, gamma:K (K below 1: bursts), or a file with one request"
            " per line: TIME,CALL or JSON (default: poisson)"
        ),
    )
    length = load.add_mutually_exclusive_group()
    length.add_argument(
        "--duration", metavar="TIME", help="length of the test: 30s, 5m (default: 30s)"
    )
    length.add_argument(
        "--requests", type=int, metavar="N", help="number of requests, instead"
    )
    load.add_argument(
        "--slo",
        metavar="OBJECTIVE",
        help=(
            "exit 1 if every strategy misses it: p99=50ms, p99.9=0.2s; of text also"
            " first_token:p99=200ms and token:p99=30ms"
        ),
    )
    load.add_argument(
        "--find-rate",
        action="store_true",
        help="search the highest rate that meets --slo, beginning with --rate",
    )
    load.add_argument(
        "--seed", type=int, metavar="S", default=0, help="of the timetable (default: 0)"
    )


def _serving_flags(parser: argparse.ArgumentParser) -> None:
    serving = parser.add_argument_group("how to serve")
    serving.add_argument(
        "--strategies",
        metavar="NAMES",
        default="",
        help=(
            "those of bench, and compile (torchproof.compile), compile:nowait,"
            " full+graph:nowait, graph:nowait, recipe:FILE, pack:DIR (default:"
            " eager,full,compile:nowait)"
        ),
    )
    serving.add_argument(
        "--workers",
        type=int,
        metavar="N",
        default=1,
        help="threads that take requests (default: 1)",
    )
    serving.add_argument(
        "--batch-window",
        metavar="TIME",
        help="answer requests that arrive within TIME together, if they make one call",
    )
    serving.add_argument(
        "--max-batch", type=int, metavar="N", help="requests of a batch at most"
    )
    serving.add_argument(
        "--no-cold",
        action="store_true",
        help="answer every call before the test, so that it begins warm",
    )


def _text_flags(parser: argparse.ArgumentParser) -> None:
    text = parser.add_argument_group(
        "text models",
        "--prompt-tokens or --output-tokens serves the target as prefill and decode.",
    )
    text.add_argument(
        "--prompt-tokens", metavar="MIN-MAX", help="lengths of prompts (16-128)"
    )
    text.add_argument(
        "--output-tokens", metavar="MIN-MAX", help="lengths of answers (16-64)"
    )
    text.add_argument(
        "--temperature", type=float, metavar="T", help="of sampling (0: most likely)"
    )
    text.add_argument(
        "--queue-limit", type=int, metavar="N", help="reject a request if N are waiting"
    )
    text.add_argument(
        "--price", type=float, metavar="P", help="of the machine per hour, for the cost"
    )
