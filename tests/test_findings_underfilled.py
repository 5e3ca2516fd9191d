"""What a suggested split assumes: several CTAs on an SM, as fill does not; and which launches count."""

from __future__ import annotations

from functools import cache

import pytest

from hta_dsv4 import load, shipped
from hta_dsv4.analysis import fill as f
from hta_dsv4.analysis.findings.finding import Finding
from tests.conftest import cli

KERNEL = "_compress_norm_rope_insert_kernel"


@cache
def split_of(trace: str, kernel: str) -> Finding:
    """The finding that suggests to split a kernel, listed or not."""
    found = load(shipped.traces()[trace]).findings(material=0.0)
    (one,) = (
        r.finding for r in found.ranked if r.finding.rule == "underfilled" and kernel in r.finding.kernels
    )
    return one


def test_fill_and_the_most_of_a_split_say_what_each_assumes() -> None:
    """32 CTAs on 132 SMs for 510.2 us -> 100/132 of it empty, 4/5 the most: one CTA an SM, or several at full speed."""
    found = split_of("fp8_split", KERNEL)
    launches = load(shipped.traces()["fp8_split"]).fill().launches
    mine = launches[(launches["kernel"] == KERNEL) & (launches[f.OWN_NS] >= 5_000)]
    time = mine[f.OWN_NS].sum() / 8
    assert mine[f.EMPTY_NS].sum() / 8 == pytest.approx(time * 100 / 132)
    assert found.recoverable is not None
    assert found.recoverable.high == pytest.approx(time * 4 / 5, abs=1)
    assert "CTAs that share an SM do not slow each other" in found.because
    assert "if an SM gets no more done with several of them than with one" in cli("fill", "fp8_split").stdout


def test_a_split_that_gives_no_sm_two_assumes_nothing_of_sharing() -> None:
    """64 CTAs in two on 132 SMs -> no SM has two, and nothing is assumed of those that share one."""
    found = split_of("mma", "_sparse_mla_mma_kernel")
    ctas, sms, splits = (e.value for e in (found.evidence[0], found.evidence[1], found.evidence[4]))
    assert (ctas * splits > sms) == ("share an SM" in found.because)
    assert ctas * splits <= sms


def test_a_split_of_a_kernel_long_in_some_steps_speaks_of_them() -> None:
    """20 of 41 launches long in 2 of 8 steps -> their two lengths, and that few of their CTAs may have work."""
    because = split_of("fp8_split", KERNEL).because
    said = "20 of its 41 launches a step take 70.6 us each in 2 of 8 steps, 1.0 us in the others"
    assert said in because
    assert "few of their CTAs have work, which the trace does not say" in because
    assert "in the others" not in split_of("tuned", "_fp8_block_gemm_kernel").because
