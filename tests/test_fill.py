"""Fill: underfilled launches, waves and tails of hand-made and shipped launches."""

from __future__ import annotations

import json
import time
from fractions import Fraction

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis import fill as f
from hta_dsv4.analysis.fill import Fill
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from tests.conftest import cli
from tests.gpu_frames import H200, copy, run_of, sized


def row(found: Fill, key: str) -> dict[str, object]:
    """One row of a fill table by kernel."""
    (hit,) = found.table[found.table["kernel"] == key].to_dict("records")
    return {str(k): v for k, v in hit.items()}


def test_two_ctas_on_132_sms() -> None:
    """A kernel of 2 CTAs, as one request gives it -> underfilled, 2 CTAs, and all of its time says so."""
    found = run_of([sized("mma", 0, 1000, 2), sized("wide", 2000, 3000, 132)]).fill()
    assert (found.underfilled_launches, found.underfilled_ns, found.kernel_sum_ns) == (1, 1000, 4000)
    assert found.sms == (132,)
    mma = row(found, "mma")
    assert (mma[f.UNDERFILLED_NS], mma[f.CTAS_MAX], mma[f.RESIDENT_MEDIAN], mma[f.TAIL_NS]) == (
        1000,
        2,
        16,
        0,
    )
    assert row(found, "wide")[f.UNDERFILLED_LAUNCHES] == 0


def test_rows_are_ranked_by_the_sm_time_they_leave_empty() -> None:
    """128 CTAs for 10 us and 2 CTAs for 1 us on 132 SMs -> the second first: 985 ns of the GPU empty against 303."""
    found = run_of([sized("nearly", 0, 10_000, 128), sized("narrow", 20_000, 1_000, 2)]).fill()
    assert found.table["kernel"].tolist() == ["narrow", "nearly"]
    assert found.table[f.EMPTY_NS].tolist() == [985, 303]  # 1000 x 130/132, 10000 x 4/132
    assert found.empty_ns == 1_288
    assert (row(found, "nearly")[f.UNDERFILLED_NS], found.underfilled_launches) == (10_000, 2)


def test_a_wait_for_the_launch_ahead_leaves_no_sm_empty() -> None:
    """A launch of 66 CTAs that starts 900 ns before its predecessor ends -> only its own 100 ns count, half of them."""
    found = run_of([sized("wide", 0, 1_000, 132), sized("half", 100, 1_000, 66)]).fill()
    half = row(found, "half")
    assert (half[f.TIME_NS], half[f.OWN_NS], half[f.EMPTY_NS]) == (1_000, 100, 50)


def test_waves_and_tail() -> None:
    """2.25 waves of 16 x 132 CTAs -> the third wave is a quarter full: a quarter of the slots' time is lost."""
    capacity = 16 * 132
    found = run_of([sized("k", 0, 4000, capacity * 9 // 4)]).fill()
    (launch,) = found.launches.to_dict("records")
    assert (launch[f.RESIDENT], launch[f.CAPACITY], launch[f.WAVES], launch[f.TAIL]) == (
        16,
        capacity,
        2.25,
        0.25,
    )
    assert launch[f.OCCUPANCY] == 1.0
    assert launch[f.LIMITED_BY] == "warps+registers"
    assert found.tail_ns == 1000  # 4000 x (1 - 2.25 / 3)


def test_a_full_last_wave_has_no_tail() -> None:
    """Exactly two waves -> tail 1.0 full, no time lost."""
    found = run_of([sized("k", 0, 4000, 2 * 16 * 132)]).fill()
    assert found.launches[f.TAIL].tolist() == [1.0]
    assert found.tail_ns == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({col.REGISTERS: None}, "does not give block, registers and shared memory"),
        ({col.REGISTERS: 0}, "does not give block, registers and shared memory"),
        ({col.SHARED_MEM: None}, "does not give block, registers and shared memory"),
        ({col.SHARED_MEM: 300_000}, "exceed what deviceProperties allow"),
    ],
)
def test_missing_size_leaves_underfilled_known(changed: dict[str, object], said: str) -> None:
    """No registers, no shared memory, an impossible size -> residency is NA with the reason, underfilled is known."""
    found = run_of([sized("k", 0, 10, 5, **changed)]).fill()
    (launch,) = found.launches.to_dict("records")
    assert found.launches[[f.RESIDENT, f.CAPACITY, f.WAVES, f.TAIL, f.OCCUPANCY]].isna().all(axis=None)
    assert bool(launch[f.UNDERFILLED])
    assert said in str(launch[f.WHY])
    assert any(said in n and "1 of 1 launches, 100.0 %" in n for n in found.notes)


def test_missing_grid_is_neither_underfilled_nor_not() -> None:
    """No grid -> CTAs and underfilled NA, the launch counted as unknown, its time in the row."""
    found = run_of([sized("k", 0, 10, 5, **{col.GRID_X: None}), sized("k", 20, 30, 5)]).fill()
    assert found.unknown_launches == 1
    assert found.launches[f.UNDERFILLED].isna().tolist() == [True, False]
    assert row(found, "k")[f.TIME_NS] == 40
    assert row(found, "k")[f.UNDERFILLED_NS] == 30


@pytest.mark.parametrize(
    ("properties", "name", "said"),
    [
        (None, "", "no deviceProperties"),
        ({**H200, "warpSize": 64}, "AMD Instinct MI300X", "other vendors"),
        ({k: v for k, v in H200.items() if k != "numSms"}, "NVIDIA H200", "how many SMs"),
    ],
)
def test_unknown_gpu_says_why(properties: dict[str, object] | None, name: str, said: str) -> None:
    """No properties, an AMD GPU, no SM count -> no waves and the reason; on AMD, underfilled by its compute units."""
    found = run_of([sized("k", 0, 10, 5)], properties=properties, name=name).fill()
    assert found.launches[f.WAVES].isna().all()
    assert any(said in n for n in found.notes)
    assert found.unknown_launches == (0 if "AMD" in name else 1)


def test_two_gpus_keep_their_own_sms() -> None:
    """Devices of 132 and 66 SMs, 100 CTAs on each -> underfilled on the larger only."""
    run = run_of([sized("a", 0, 10, 100), sized("b", 0, 10, 100, **{col.DEVICE: 1})], devices=(0, 1))
    small = {**H200, "numSms": 66}
    meta = run.traces[0].meta
    devices = (meta.devices[0], type(meta.devices[1])(1, "NVIDIA half", small))
    found = f.launch_fill(run.activities, type(meta)(devices=devices))
    assert found[f.UNDERFILLED].tolist() == [True, False]
    assert found.index.tolist() == [0, 1]


def test_copies_and_empty_traces() -> None:
    """Only copies -> an empty table; no activity at all -> one line that says so."""
    assert run_of([copy(0, 10)]).fill().table.empty
    with pytest.raises(HtaDsv4Error, match="no GPU events"):
        run_of([]).fill()


kernels = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 10_000), st.integers(1, 40_000)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=12)
@given(kernels, st.randoms(use_true_random=False))
def test_order_of_launches_does_not_matter(rows: list[tuple[str, int, int]], random: object) -> None:
    """The same launches in another order -> the same table; rows add up to the kernel time."""
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    tables = []
    for order in (rows, shuffled):
        found = run_of([sized(n, i * 20_000, dur, ctas) for i, (n, dur, ctas) in enumerate(order)]).fill()
        assert int(found.table[f.TIME_NS].sum()) == found.kernel_sum_ns == sum(d for _, d, _ in rows)
        assert int(found.table[f.UNDERFILLED_NS].sum()) == found.underfilled_ns
        assert found.underfilled_ns == sum(d for _, d, c in rows if c < 132)
        assert 0 <= found.tail_ns <= found.kernel_sum_ns // 2 + len(rows)
        tables.append(found.table)
    assert tables[0].equals(tables[1])


def test_many_launches_are_fast() -> None:
    """60,000 launches of 200 configurations -> below a second (0.07 s measured)."""
    part = run_of([sized(f"k{i % 40}", i * 10, 9, 1 + i % 200) for i in range(60_000)])
    part.classified  # noqa: B018 - classification is not what is timed
    activities, meta = part.activities, part.traces[0].meta
    began = time.perf_counter()
    f.launch_fill(activities, meta)
    assert time.perf_counter() - began < 1.0


def test_shipped_split_k_at_one_request() -> None:
    """The split-K trace at C = 1 -> 60.8 % of kernel time underfilled; the split kernel has 2, 10 or 130 CTAs."""
    found = hta_dsv4.load(hta_dsv4.traces()["split_k_c1"]).fill()
    assert found.underfilled_ns / found.kernel_sum_ns == pytest.approx(0.608, abs=0.001)
    split = row(found, "_sparse_mla_split_k_kernel")
    assert (split[f.CTAS_MIN], split[f.CTAS_MEDIAN], split[f.CTAS_MAX]) == (2, 10, 130)
    assert split[f.UNDERFILLED_NS] == split[f.TIME_NS]
    assert (
        split[f.LIMITED_BY] == "registers"
    )  # 232 of them in 8 warps; 64 KiB of shared memory would admit three


def test_shipped_mma_has_one_cta_a_request() -> None:
    """The MMA trace at C = 32 -> 32 CTAs on 132 SMs, one per SM: all of its time is underfilled; MoE is not at all."""
    run = hta_dsv4.load(hta_dsv4.traces()["mma"])
    mma = row(run.fill(), "_sparse_mla_mma_kernel")
    assert (mma[f.CTAS_MIN], mma[f.CTAS_MAX], mma[f.RESIDENT_MEDIAN]) == (32, 32, 1)
    assert mma[f.UNDERFILLED_NS] == mma[f.TIME_NS]
    by_bucket = run.fill("bucket").table.set_index("bucket")
    assert by_bucket.loc["fp4_moe", f.UNDERFILLED_NS] == 0


def test_command_line_forms() -> None:
    """All four forms: text, JSON, CSV and Markdown -> the same totals, JSON without NaN."""
    text = cli("fill", "h200_probe", "--by", "bucket")
    assert text.returncode == 0, text.stderr
    assert "132 SMs" in text.stdout
    document = json.loads(cli("fill", "h200_probe", "--by", "bucket", "--json").stdout)
    (variant,) = document["variants"]
    assert (document["schema"], document["command"], document["by"]) == (1, "fill", ["bucket"])
    assert sum(r["time_ns"] for r in variant["rows"]) == variant["kernel_sum_ns"]
    lines = cli("fill", "h200_probe", "--by", "bucket", "--csv").stdout.splitlines()
    assert len(lines) == 1 + len(variant["rows"])
    assert cli("fill", "h200_probe", "--md").stdout.startswith("**h200")
    assert cli("fill", "h200_probe", "--by", "nonsense").returncode == 2


def test_empty_time_is_rounded_once() -> None:
    """fp8_split's 18,416 launches, 9,744 of them underfilled -> the exact 2,221,189.446 ns a step, rounded once."""
    found = hta_dsv4.load(hta_dsv4.traces()["fp8_split"]).fill()
    rows = found.launches[found.launches[f.UNDERFILLED].fillna(False).astype(bool)]
    pairs = zip(rows[f.OWN_NS], rows[f.CTAS], rows[f.SMS], strict=True)
    exact = sum((Fraction(int(own) * int(sms - ctas), int(sms)) for own, ctas, sms in pairs), Fraction())
    assert found.empty_ns == int(found.table[f.EMPTY_NS].sum()) == round(exact)
    assert int(found.table[f.EMPTY_NS_PER_STEP].sum()) == round(exact / found.steps) == 2_221_189
    for _, one in found.table.iterrows():
        mine = rows[rows["kernel"] == one["kernel"]]
        assert abs(one[f.EMPTY_NS] - float((mine[f.OWN_NS] * (132 - mine[f.CTAS])).sum()) / 132) < 1


def test_gpus_of_two_sizes_are_added_up_exactly() -> None:
    """Launches of 1 ns with 1 CTA on 3 and on 2 SMs -> 2/3 + 1/2 ns each pair, rounded once: 3 pairs are 3.5 ns."""
    table = pd.DataFrame({"kernel": ["a"] * 6, f.SMS: [3, 2] * 3, "empty_sm_ns": [2, 1] * 3})
    parts, of = f._empty(table, ["kernel"], pd.Index(["a"]))
    assert Fraction(parts[0], of) == Fraction(7, 2)
