"""How requests for text delay each other, and how long one usually takes.

One thread serves all slots. While it puts a prompt into a slot, no other request gets a
token, and a request that waits for its own prefill has to let one step of decode pass
after each prefill before it. So prefills are stalls of all other requests. Requests
have answers of different lengths: what each usually takes depends on its length.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from torchproof.records import Requests, Stall

NEXT = "next_s"  # in the data of a prefill: when the next one began


def prefills(requests: Requests) -> tuple[Stall, ...]:
    """The prefill of each request as a stall of the others; empty without text."""
    spans = sorted(_prefill_spans(requests))
    following_s = [begin for begin, _, _ in spans[1:]]
    following_s += [end for _, end, _ in spans[-1:]]
    return tuple(
        Stall(
            kind="prefill",
            begin_s=begin,
            end_s=end,
            text=f"prefill of {requests.prompt_tokens[number]} tokens",
            request=number,
            # Apart from the thread that serves: what stops that inside of a prefill
            # is a cause of its own.
            thread="prefill",
            data={"tokens": requests.prompt_tokens[number], NEXT: following},
        )
        for (begin, end, number), following in zip(spans, following_s, strict=True)
    )


def _prefill_spans(requests: Requests) -> Iterator[tuple[float, float, int]]:
    times = zip(requests.begin_s, requests.first_token_s, strict=False)
    for number, (begin, first) in enumerate(times):
        if begin is not None and first is not None:
            yield begin, first, number


def usual_times(requests: Requests) -> dict[int, float]:
    """By request, the seconds that its prompt and its number of tokens usually take.

    They are medians: that of prefills of the same padded size, and that of the time
    per further token.
    """
    prefill_s: dict[int, list[float]] = defaultdict(list)
    per_token_s = []
    for begin, first, number in _prefill_spans(requests):
        prefill_s[requests.call[number]].append(first - begin)
        end, tokens = requests.end_s[number], requests.output_tokens[number]
        if end is not None and tokens is not None and tokens > 1:
            per_token_s.append((end - first) / (tokens - 1))
    step_s = statistics.median(per_token_s) if per_token_s else 0.0
    usual_s = {call: statistics.median(each) for call, each in prefill_s.items()}
    return {
        number: usual_s[requests.call[number]]
        + step_s * max(0, (requests.output_tokens[number] or 1) - 1)
        for _, _, number in _prefill_spans(requests)
    }
