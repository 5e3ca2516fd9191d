"""A number of a finding has the same digits wherever the finding says it."""

from __future__ import annotations

import re

import pytest

import hta_dsv4
from hta_dsv4.analysis.findings.finding import MEASURED, about, rate
from hta_dsv4.present.findings_grid import said

BASE = {"ns": 1.0, "us": 1e3, "ms": 1e6, "GB/s": 1.0, "TB/s": 1e3, "TFLOP/s": 1.0, "%": 1.0}
NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*\.?\d*) ?(us|ms|GB/s|TB/s|TFLOP/s|%)")
CLOSE = 0.02


def numbers(text: str, unit: str) -> list[float]:
    """Those of a unit, in it."""
    same = {"ns": ("us", "ms"), "GB/s": ("GB/s", "TB/s")}.get(unit, (unit,))
    return [float(n.replace(",", "")) * BASE[u] for n, u in NUMBER.findall(text) if u in same]


@pytest.mark.parametrize("name", ["fp8_split", "tuned_c1", "original", "indexer_triton", "tp2"])
def test_a_modelled_number_has_the_same_digits_in_title_and_evidence(name: str) -> None:
    """Every finding of shipped traces -> a title's number that is one of the evidence's is written as it is there."""
    files = hta_dsv4.traces()
    path = files["cuda_graph"].parent / "tp2" / "cuda_graph_c32_tp2" if name == "tp2" else files[name]
    done = hta_dsv4.load(path, companion=files.get(f"{name}_eager")).findings()
    every = [r.finding for r in (*done.ranked, *done.covered, *done.smaller)] + [*done.leave]
    seen = 0
    for f in every:
        measured = [e for e in f.evidence if e.label == MEASURED]
        for e in f.evidence:
            if e.label == MEASURED or e.unit not in ("ns", "GB/s", "TFLOP/s", "%"):
                continue
            (written, *_) = numbers(said(e), e.unit)
            for told in numbers(f.title, e.unit):
                another = any(abs(told - m.value) < abs(told - e.value) for m in measured if m.unit == e.unit)
                if abs(told - e.value) <= CLOSE * e.value and not another:
                    assert told == pytest.approx(written, rel=1e-9), (f.title, said(e))
                    seen += 1
    assert seen >= 3


def test_times_and_rates_of_a_model_have_three_digits() -> None:
    """A floor, a bandwidth -> three digits; a counted bandwidth keeps its own."""
    assert [about(v) for v in (109_900, 16_732_000, 667, 999_960)] == [
        "110 us",
        "16.7 ms",
        "0.667 us",
        "1,000 us",
    ]
    assert [rate(1016.4), rate(1016.4, MEASURED), rate(5.617)] == ["1,020", "1,016", "5.62"]
