"""Random numbers are not drawn twice because a compiler puts their state back."""

from __future__ import annotations

import random
import threading

import torch

from torchproof.runtime.tensors import rng_state


def put_back_after_drawing() -> bool:
    """Whether the same numbers are drawn once the state is put back."""
    states = torch.random.get_rng_state(), random.getstate()
    drawn = torch.rand(1).item(), random.random()
    torch.random.set_rng_state(states[0])
    random.setstate(states[1])
    again = torch.rand(1).item(), random.random()
    assert (drawn[0] == again[0]) == (drawn[1] == again[1])
    return drawn == again


def test_what_is_left_alone_is_not_put_back() -> None:
    assert put_back_after_drawing()
    with rng_state.restores_suppressed():
        assert not put_back_after_drawing()
    assert put_back_after_drawing()


def test_others_put_it_back_meanwhile() -> None:
    answers: list[bool] = []

    def other() -> None:
        answers.append(put_back_after_drawing())

    with rng_state.restores_suppressed():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert answers == [True]


def test_the_functions_are_what_they_were_afterwards() -> None:
    functions = torch.random.set_rng_state, torch.cuda.set_rng_state, random.setstate
    with rng_state.restores_suppressed(), rng_state.restores_suppressed():
        pass
    assert functions == (
        torch.random.set_rng_state,
        torch.cuda.set_rng_state,
        random.setstate,
    )
