"""The device table: the right entry for a name, measured before published, nothing made up."""

from __future__ import annotations

import pytest

from hta_dsv4.analysis.devices import RATES, ceilings, known_devices
from hta_dsv4.analysis.floors import compute_ns


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H20", "NVIDIA H20"),
        ("NVIDIA GH200 480GB", "NVIDIA H100 SXM"),
        ("NVIDIA GB200", "NVIDIA GB200"),
        ("NVIDIA B200", "NVIDIA B200"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX PRO 6000 Blackwell Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell Max-Q"),
        ("NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 5090"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40GB"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
    ],
)
def test_a_name_as_a_trace_spells_it_finds_its_own_entry(name, entry):
    """Names as drivers report them -> that GPU's entry, not its family's."""
    found = ceilings(name)
    assert found is not None
    assert found.name == entry


@pytest.mark.parametrize("name", [None, "", "Tesla V100-SXM2-16GB", "Intel Data Center GPU Max"])
def test_an_unknown_gpu_has_no_ceilings(name):
    """A GPU outside the table -> nothing, not a guess."""
    assert ceilings(name) is None


def test_measured_ceilings_override_published_ones_and_say_so():
    """H200, nearly all measured -> those figures, marked so; H100, of which nothing was -> the vendor's."""
    h200 = ceilings("NVIDIA H200")
    assert h200 is not None
    assert (h200.dram_gb_s, h200.read_gb_s, h200.rates["bf16"]) == (4275, 4690, 798)
    assert h200.rates["fp8"] == 1357
    text = " ".join(h200.sentences())
    assert "4,275 GB/s (measured)" in text
    assert "fp8 1,357.0 (measured)" in text
    assert "L2 8,290 GB/s (measured)" in text
    h100 = ceilings("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    assert "fp8 1,979.0 (datasheet)" in " ".join(h100.sentences())


def test_memory_time_lies_between_reading_and_copying():
    """Reads alone, a copy and half of each -> their own bandwidths, in order."""
    h200 = ceilings("NVIDIA H200")
    assert h200 is not None
    read, copy = h200.memory_ns(4690e3, 0), h200.memory_ns(4275e3, 4275e3)
    assert read == pytest.approx(1e3)
    assert copy == pytest.approx(2e3)
    assert h200.memory_ns(1e6, 0) < h200.memory_ns(0.75e6, 0.25e6) < h200.memory_ns(0.5e6, 0.5e6)
    assert h200.memory_ns(0, 1e6) == h200.memory_ns(0.5e6, 0.5e6)
    assert h200.memory_ns(0, 0) == 0


def test_arithmetic_a_gpu_lacks_runs_at_the_next_wider_rate():
    """FP8 operations on an A100 -> its bf16 rate."""
    a100 = ceilings("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    assert a100.compute_ns(312e12, "fp8") is None
    assert compute_ns(a100, 312e12, "fp8") == pytest.approx(1e9)


def test_every_entry_is_complete_and_in_proportion():
    """Each entry -> a source, positive figures, narrower arithmetic not slower."""
    for c in known_devices():
        assert c.source
        assert c.dram_gb_s > 500
        known = [c.rates[k] for k in RATES if k in c.rates]
        assert known == sorted(known), c.name
        assert ceilings(c.name) is c, c.name
