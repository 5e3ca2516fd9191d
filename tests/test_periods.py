"""The period of a kernel sequence: found where there is one, and only there."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.trace.anchors import MIN_LENGTH
from hta_dsv4.trace.periods import find_period
from hta_dsv4.trace.sequences import Kernels, encode, similar


def step_body(rng: np.random.Generator, layers: int, per_layer: int, head: int, kinds: int = 2) -> np.ndarray:
    """One step: layers of alternating kinds, made of few kernels used again and again, and a head of its own."""
    shared = [rng.integers(0, 30 + 10 * k, per_layer) for k in range(kinds)]
    body = [shared[i % kinds] for i in range(layers)]
    return np.concatenate([*body, 1000 + np.arange(head)])


@st.composite
def bodies(draw: st.DrawFn) -> tuple[np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    body = step_body(
        rng,
        draw(st.integers(1, 12)),
        draw(st.integers(MIN_LENGTH, 40)),
        draw(st.integers(2, 6)),
        draw(st.integers(1, 3)),
    )
    return body, rng


@given(bodies(), st.integers(2, 9))
@settings(max_examples=80, deadline=None)
def test_a_repeated_step_is_found_whatever_layers_repeat_in_it(made, steps):
    """N equal steps of repeated layers and a head -> n periods of the step's length, from the first kernel on."""
    body, _ = made
    period, detail = find_period(np.tile(body, steps))
    assert period is not None, detail
    assert period.length == len(body)
    assert period.starts.tolist() == [len(body) * i for i in range(steps)]
    assert period.ends[-1] == len(body) * steps


@given(bodies(), st.integers(3, 8), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_kernel_more_or_less_in_one_step_moves_nothing_else(made, steps, drop):
    """One kernel dropped from or added to one step -> the same steps, each from its own first kernel or the next."""
    body, rng = made
    if len(body) < 40:  # one of twenty kernels is no small change
        body = np.concatenate([body, np.arange(2000, 2040)])
    parts = [body.copy() for _ in range(steps)]
    which, at = int(rng.integers(steps)), int(rng.integers(1, len(body) - 1))
    parts[which] = np.delete(body, at) if drop else np.insert(body, at, 7)
    bounds = np.cumsum([0, *map(len, parts)])
    period, detail = find_period(np.concatenate(parts))
    assert period is not None, detail
    assert len(period.starts) == steps
    # a step whose first two kernels are one kernel twice may begin with either
    assert np.abs(period.starts - bounds[:-1]).max() <= 1
    assert np.abs(period.ends - bounds[1:]).max() <= 1


@given(st.integers(0, 10_000), st.integers(1, 2000), st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_no_period_in_a_random_sequence(seed, kinds, n):
    """Kernels drawn at random -> none."""
    rng = np.random.default_rng(seed)
    period, _ = find_period(rng.integers(0, kinds + 3, n))
    assert period is None


def test_a_constant_sequence_has_no_period():
    """One kernel over and over -> a loop, no step."""
    assert find_period(np.zeros(5000, dtype=np.int64))[0] is None


def test_the_layers_of_a_single_step_are_no_steps():
    """embedding, 48 equal layers, head -> none, and the reason."""
    one = np.concatenate([[500, 501], np.tile(np.arange(14), 48), [502, 503, 504]])
    period, detail = find_period(one)
    assert period is None
    assert "layers of one forward pass" in detail


def test_a_kernel_in_every_other_step_does_not_make_two_steps_one():
    """6,000-kernel steps, every second with one kernel more -> every step is one."""
    body = step_body(np.random.default_rng(3), 43, 130, 12)
    period, _ = find_period(np.concatenate([np.insert(body, 50, 999) if i % 2 else body for i in range(8)]))
    assert period is not None
    assert len(period.starts) == 8
    assert period.alike.all()


def test_other_work_before_the_steps_is_left_out():
    """A prefill of other kernels, then five steps -> five periods from where the first step begins."""
    rng = np.random.default_rng(5)
    prefill, body = 5000 + step_body(rng, 43, 60, 4), step_body(rng, 43, 80, 8)
    period, _ = find_period(np.concatenate([prefill, np.tile(body, 5)]))
    assert period is not None
    assert period.starts.tolist() == [len(prefill) + len(body) * i for i in range(5)]


def test_a_prefill_between_the_steps_is_told_apart():
    """Three steps, other work, three steps -> six like periods and the other work among none of them."""
    rng = np.random.default_rng(6)
    prefill, body = 5000 + step_body(rng, 43, 60, 4), step_body(rng, 43, 80, 8)
    sequence = np.concatenate([np.tile(body, 3), prefill, np.tile(body, 3)])
    period, _ = find_period(sequence)
    assert period is not None
    assert period.alike.sum() == 6
    inside = np.concatenate([sequence[a:b] for a, b in zip(period.starts, period.ends, strict=True)])
    assert not (inside >= 5000).any()


def test_the_step_begins_where_idle_time_stands_out():
    """A capture that begins in the middle of a step, with a gap between steps -> steps begin at the gap."""
    body = step_body(np.random.default_rng(8), 20, 50, 6)
    cut = 300
    sequence = np.tile(body, 6)[cut:]
    gaps = np.full(len(sequence), 500)
    gaps[len(body) - cut :: len(body)] = 90_000
    period, _ = find_period(sequence, gaps)
    assert period is not None
    assert period.starts.tolist() == [len(body) * i - cut for i in range(1, 6)]


def test_two_steps_are_enough_when_they_are_the_whole_trace():
    """The same step twice -> two periods."""
    body = step_body(np.random.default_rng(9), 43, 100, 10)
    period, _ = find_period(np.tile(body, 2))
    assert period is not None
    assert period.starts.tolist() == [0, len(body)]


def test_similarity_counts_pairs_in_common():
    """equal, reordered and foreign stretches -> 1, less, 0."""
    a = np.array([0, 1, 2, 3, 4])
    sequence = np.concatenate([a, a, a[::-1], a + 10])
    at = np.arange(0, 20, 5)
    out = similar(Kernels(sequence), at, at + 5)
    assert out[0] == out[1] == 1.0
    assert 0 <= out[2] < 0.3
    assert out[3] == 0.0


def test_encode_tells_rows_apart():
    """Rows of two columns -> one code a distinct row."""
    code = encode([np.array([5, 5, -1, 5]), np.array([2, 3, 2, 2])])
    assert code[0] == code[3]
    assert len(set(code.tolist())) == 3
    assert set(code.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("steps", "limit_s"), [(10, 2.0)])
def test_sixty_thousand_kernels_take_seconds(steps, limit_s):
    """10 steps of 6,000 kernels with a variation in each -> under two seconds."""
    rng = np.random.default_rng(11)
    body = step_body(rng, 43, 139, 20)
    parts = [np.insert(body, int(rng.integers(1, 5000)), 7) for _ in range(steps)]
    begun = time.perf_counter()
    period, _ = find_period(np.concatenate(parts))
    took = time.perf_counter() - begun
    assert period is not None
    assert len(period.starts) == steps
    assert took < limit_s
