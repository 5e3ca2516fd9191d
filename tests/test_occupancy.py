"""CTAs per SM: the CUDA occupancy calculator's answers, and what is said where the limits are unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hta_dsv4.analysis.occupancy import (
    BLOCKS,
    LIMITS,
    REGISTERS,
    SHARED,
    WARPS,
    Resident,
    capabilities,
    device_entry,
    device_limits,
    limits_for,
    resident_ctas,
)
from hta_dsv4.trace.model import Device, TraceMeta
from tests import occupancy_oracle as oracle

TABLE = Path(__file__).parent / "data" / "occupancy.tsv"
H200 = {
    "numSms": 132, "computeMajor": 9, "computeMinor": 0, "maxThreadsPerBlock": 1024, "warpSize": 32,
    "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "regsPerMultiprocessor": 65536,
    "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip
ONLY_UNLIMITED = 2**31 - 1  # how the calculator writes "does not limit"


def ours(configs: pd.DataFrame, capability: str) -> Resident:
    """Our answer for the rows of one capability."""
    columns = [configs[c].to_numpy(np.int64) for c in ("threads", "registers", "shared")]
    return resident_ctas(limits_for(capability), *columns)


def disagreements(table: pd.DataFrame) -> pd.DataFrame:
    """Rows where our CTAs, or the CTAs of any single limit, are not the calculator's."""
    bad = []
    for capability, part in table.groupby("capability"):
        found = ours(part, str(capability))
        same = found.ctas == part["ctas"].to_numpy()
        for limit, column in ((WARPS, "warps"), (REGISTERS, "regs"), (SHARED, "smem"), (BLOCKS, "blocks")):
            same &= np.minimum(found.by_limit[limit], ONLY_UNLIMITED) == part[column].to_numpy()
        bad.append(part[~same])
    return pd.concat(bad)


def test_kept_answers_of_the_calculator() -> None:
    """3,000 kept configurations on ten capabilities -> our CTAs and each limit are the calculator's."""
    table = pd.read_csv(TABLE, sep="\t", dtype={"capability": str})
    assert len(table) == oracle.SAMPLE
    assert set(table["capability"]) == set(capabilities())
    assert table["ctas"].nunique() > 15
    assert disagreements(table).empty


@pytest.mark.skipif(
    oracle.header_folder() is None or oracle.compiler() is None,
    reason="no cuda_occupancy.h or no C++ compiler",
)
def test_calculator_itself() -> None:
    """Every configuration of the grid, asked of the header now -> no disagreement."""
    folder, cxx = oracle.header_folder(), oracle.compiler()
    assert folder is not None
    assert cxx is not None
    configs = oracle.grid()
    answers = oracle.ask(configs, folder, cxx)
    rows = [(*c, *a) for c, a in zip(configs, answers, strict=True)]
    table = pd.DataFrame(rows, columns=list(oracle.COLUMNS))
    assert len(table) > 60_000
    assert disagreements(table).empty


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "ctas", "by"),
    [
        (128, 32, 0, 16, "warps+registers"),  # 64 / 4 warps; 16384 / 1024 = 16 warps a quarter, 64 / 4
        (
            384,
            168,
            208896,
            1,
            "registers+shared memory",
        ),  # a known sparse-decode kernel: one CTA a SM, no more
        (256, 64, 0, 4, "registers"),  # 64 * 32 = 2,048 a warp, 8 a quarter, 32 warps, 4 CTAs
        (32, 16, 6000, 32, "blocks"),  # 6000 + 1024 -> 7,040 B: 33 CTAs of 233,472 B, so the block slots bind
        (32, 16, 40000, 5, "shared memory"),  # 41,088 B of 233,472
    ],
)
def test_hand_worked(threads: int, registers: int, shared: int, ctas: int, by: str) -> None:
    """One configuration on sm_90, worked by hand -> CTAs and the limits that bind."""
    found = resident_ctas(limits_for("9.0"), *(np.array([v]) for v in (threads, registers, shared)))
    assert int(found.ctas[0]) == ctas
    assert found.limited_by()[0] == by


@given(
    st.sampled_from(capabilities()),
    st.integers(1, 1024),
    st.integers(0, 255),
    st.integers(0, 240_000),
    st.integers(0, 3),
)
def test_asking_for_more_never_fits_more(
    capability: str, threads: int, registers: int, shared: int, more: int
) -> None:
    """Any configuration and one that asks for more of something -> never more CTAs, and at least one limit is named."""
    base = [threads, registers, shared]
    grown = [threads + 32 * (more == 0), registers + 8 * (more == 1), shared + 512 * (more == 2)]
    before, after = (
        resident_ctas(limits_for(capability), *(np.array([v], dtype=np.int64) for v in c))
        for c in (base, grown)
    )
    assert after.ctas[0] <= before.ctas[0]
    assert set(before.limited_by()[0].split("+")) <= set(LIMITS)
    assert before.limited_by()[0]


def test_device_properties_override_the_table() -> None:
    """An H200's properties with half the shared memory -> that is used, and only max_blocks is assumed."""
    found, why = device_limits(Device(0, "NVIDIA H200", {**H200, "sharedMemPerMultiprocessor": 116736}))
    assert found is not None
    assert why == ""
    assert (found.sms, found.shared, found.max_warps, found.assumed) == (132, 116736, 64, ("max_blocks",))


def test_nonsense_in_properties_is_not_used() -> None:
    """Properties that are text, negative or boolean -> the table's figure, named as assumed."""
    odd = {**H200, "regsPerMultiprocessor": "many", "sharedMemPerMultiprocessor": -1, "regsPerBlock": True}
    found, _ = device_limits(Device(0, "NVIDIA H200", odd))
    assert found is not None
    assert (found.registers, found.shared, found.registers_per_block) == (65536, 233472, 65536)
    assert {"registers", "shared", "registers_per_block"} <= set(found.assumed)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (None, "no deviceProperties"),
        (Device(0, "AMD Instinct MI300X", {**H200, "computeMinor": 4, "warpSize": 64}), "other vendors"),
        (Device(0, None, {**H200, "warpSize": 64}), "other vendors"),
        (Device(0, "NVIDIA H200", {"numSms": 132}), "lack computeMajor"),
        (Device(0, "NVIDIA V100", {**H200, "computeMajor": 7}), "7.0 is not in the table"),
    ],
)
def test_unknown_limits_say_why(device: Device | None, said: str) -> None:
    """A device that is missing, another vendor's, or of unknown capability -> no limits, and the reason."""
    found, why = device_limits(device)
    assert found is None
    assert said in why


def test_device_entry_by_number_or_the_only_one() -> None:
    """Kernels on device 3 -> entry 3; with a single entry of another number, that one; with two, none."""
    three, zero = Device(3, "a", {}), Device(0, "b", {})
    assert device_entry(TraceMeta(devices=(zero, three)), 3) is three
    assert device_entry(TraceMeta(devices=(zero,)), 5) is zero
    assert device_entry(TraceMeta(devices=(zero,)), None) is zero
    assert device_entry(TraceMeta(devices=(zero, three)), 5) is None
