"""A short fuzz of the reader for CI; the long one is ``make fuzz``."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hta_dsv4.trace.reader import read_trace
from tests.fuzz import reference
from tests.fuzz.mutate import gz, make, seeds
from tests.fuzz.oracle import check, keep_everything
from tests.fuzz.oracle import compare as compare_with_reference

SECONDS = 12.0  # of inputs by number; how many that is depends on the machine, which ones does not


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    keep_everything(tmp_path / "cache", monkeypatch.setattr, monkeypatch.setenv)


@pytest.mark.parametrize("name", sorted(seeds()))
def test_the_slow_reader_agrees_on_what_is_whole(tmp_path, name):
    """An unchanged seed -> every row as the independent reader has it, and there are rows."""
    path = tmp_path / "x.json"
    path.write_bytes(gz(seeds()[name]))
    truth = reference.read(path.read_bytes())
    assert truth.rows
    compare_with_reference(read_trace(path, cache=False), truth)


def test_inputs_by_number(tmp_path):
    """Seed 0, 1, 2, ... for some seconds -> an answer that the slow reader confirms, or one line, each time."""
    began, seed = time.monotonic(), 0
    while time.monotonic() - began < SECONDS or seed < 20:
        rng = Random(seed)
        check(make(rng), tmp_path / "x.json", rng)
        seed += 1


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(st.randoms(use_true_random=True))
def test_inputs_by_hypothesis(tmp_path, rng):
    """Any other seed -> the same."""
    check(make(rng), tmp_path / "x.json", rng)
