"""Hand-overs between the warps of the Hopper form, read from its PTX; and what reads reports of the race checkers."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import test_hopper_aot
from dsv4_kernels.hopper_select import FORMS
from dsv4_kernels.hopper_support import missing_from_gluon

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    """A module of the benchmarks, which are no package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


ptx_handover, race_faults, check_races = (
    load(name) for name in ("ptx_handover", "race_faults", "check_races")
)
needs_gluon = pytest.mark.skipif(
    missing_from_gluon() is not None, reason=f"this Triton has no {missing_from_gluon()}"
)


@pytest.fixture(scope="module")
def ptx() -> dict[tuple[str, bool], str]:
    """PTX of every form, split and whole, as the other test of compiled forms has them (Triton's cache has them)."""
    requests = [replace(request, keep_ptx=True) for request in test_hopper_aot.REQUESTS.values()]
    made = test_hopper_aot.aot.compile_all(requests)
    assert [result.error for result in made] == [""] * len(made)
    return dict(zip(test_hopper_aot.REQUESTS, (result.ptx for result in made), strict=True))


@needs_gluon
@pytest.mark.parametrize("form", list(test_hopper_aot.REQUESTS))
def test_each_arrival_stands_for_its_group(form: tuple[str, bool], ptx: dict[tuple[str, bool], str]) -> None:
    """A form's PTX -> barrier before each arrival, products ended, tiles fenced."""
    # full, weighted, twice empty, and full again for a second piece or the first block's help.
    assert ptx_handover.count_arrivals(ptx[form]) >= 4
    assert ptx_handover.find_faults(ptx[form]) == []


@needs_gluon
def test_an_arrival_without_its_barrier_is_found(ptx: dict[tuple[str, bool], str]) -> None:
    """The barrier before one arrival taken out of the PTX -> that arrival is named, for every one of them."""
    text = ptx[check_races.FAULTY_FORM, False]
    ends = [match.start() for match in re.finditer(r"mbarrier\.arrive\.", text)]
    for number, end in enumerate(ends):
        start = text.rindex("bar.sync", 0, end)
        without = text[:start] + text[text.index(";", start) + 1 :]
        assert ptx_handover.find_faults(without) == [
            f"arrival {number}: no barrier of the group right before it"
        ]


@needs_gluon
def test_a_store_between_barrier_and_arrival_is_found(ptx: dict[tuple[str, bool], str]) -> None:
    """A store put between a barrier and its arrival -> found; the same store before the barrier -> not."""
    text = ptx[check_races.FAULTY_FORM, False]
    arrival = re.search(r"@%p\d+ mbarrier\.arrive", text)
    assert arrival is not None
    store = "st.shared.b32 \t[%r1], %r1;\n"
    after = text[: arrival.start()] + store + text[arrival.start() :]
    assert ptx_handover.find_faults(after) == ["arrival 0: no barrier of the group right before it"]
    barrier = text.rindex("bar.sync", 0, arrival.start())
    assert ptx_handover.find_faults(text[:barrier] + store + text[barrier:]) == []


@needs_gluon
def test_a_buffer_let_go_under_a_product_is_found(ptx: dict[tuple[str, bool], str]) -> None:
    """Waits for products taken out -> the two arrivals that let buffers go are named."""
    text = re.sub(r"wgmma\.wait_group\.sync\.aligned\s+0;", "", ptx[check_races.FAULTY_FORM, False])
    faults = ptx_handover.find_faults(text)
    assert len(faults) == 2
    assert all("a product may still be reading" in fault for fault in faults)


@needs_gluon
def test_tiles_that_nobody_fences_are_found(ptx: dict[tuple[str, bool], str]) -> None:
    """Proxy fences taken out -> every arrival after tiles were stored is named, no other."""
    text = ptx[check_races.FAULTY_FORM, False].replace("fence.proxy.async", "// fence")
    faults = ptx_handover.find_faults(text)
    assert faults
    assert all("a tile that nobody fences" in fault for fault in faults)
    assert len(faults) < ptx_handover.count_arrivals(text)


@needs_gluon
@pytest.mark.parametrize("form", list(test_hopper_aot.REQUESTS))
def test_every_thread_arrives(form: tuple[str, bool], ptx: dict[tuple[str, bool], str]) -> None:
    """A form's PTX rewritten -> no arrival under a condition, every count 128-fold, the rest as it was."""
    text = ptx_handover.every_thread_arrives(ptx[form])
    assert not re.search(r"@%p\d+ mbarrier\.arrive", text)
    assert ptx_handover.count_arrivals(text) == ptx_handover.count_arrivals(ptx[form])
    counts = [
        [int(count) for count in re.findall(r"mbarrier\.init\S+ \[%r\d+\], (\d+);", version)]
        for version in (ptx[form], text)
    ]
    assert len(counts[0]) == 3 * FORMS[form[0]].buffers
    assert counts[1] == [128 * count for count in counts[0]]
    undone = re.sub(r"@%p\d+ (mbarrier\.arrive)", r"\1", ptx[form])
    differing = [(a, b) for a, b in zip(undone.splitlines(), text.splitlines(), strict=True) if a != b]
    assert all("mbarrier.init" in a for a, _ in differing)


def test_an_arrival_of_unknown_form_is_refused() -> None:
    """An arrival that counts for two -> an error, no kernel that would hang."""
    text = "mbarrier.init.shared::cta.b64 [%r1], 2;\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1], 2;\n"
    with pytest.raises(ValueError, match="0 of 1 arrivals"):
        ptx_handover.every_thread_arrives(text)


@pytest.mark.parametrize("name", list(race_faults.FAULTS))
def test_a_fault_still_fits_the_source(name: str, tmp_path: Path) -> None:
    """A planted fault -> a copy of the kernels that differs, and still is Python."""
    kernels = race_faults.plant(name, BENCHMARKS.parent, tmp_path / name)
    changed = []
    for path in sorted((kernels / "dsv4_kernels").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        compile(text, path.name, "exec")
        if text != (BENCHMARKS.parent / "dsv4_kernels" / path.name).read_text(encoding="utf-8"):
            changed.append(path.name)
    assert changed in ([race_faults.GATHER], [race_faults.CONSUME])


REPORTS = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at _sparse_mla_hopper_kernel+0x190 in hopper.py:42
=========     and Write access at _sparse_mla_hopper_kernel+0x72c0 in hopper.py:42 [96 hazards]
=========     and Write access at _sparse_mla_hopper_kernel+0xbc20 in hopper.py:90 [8 hazards]
=========
{more}========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
OURS = """========= Error: Race reported between Write access at _sparse_mla_hopper_kernel+0x2b70 in {write}:157
=========     and Read access at _sparse_mla_hopper_kernel+0x5360 in hopper_consume.py:208 [256 hazards]
=========
"""


def test_reports_on_tritons_own_words_are_told_apart() -> None:
    """Reports all in hopper.py -> counted apart; with one end elsewhere, or with no source -> the kernel's own."""
    assert check_races.split_reports(REPORTS.format(more="")) == (set(), 1)
    for write in ("hopper_consume.py", "hopper.py"):
        own, tritons = check_races.split_reports(REPORTS.format(more=OURS.format(write=write)))
        assert (own, tritons) == ({f"{write}:157 hopper_consume.py:208"}, 1)
    bare = "========= Error: Race reported between Write access at kernel+0x10\n===     and Read access at kernel\n"
    assert check_races.split_reports(bare) == ({"?"}, 0)


def test_a_checker_that_broke_off_is_no_silence() -> None:
    """No summary, no result -> neither clean nor racy."""
    broken = check_races.Outcome(1, "RuntimeError: no device\n")
    assert check_races.say_racecheck(broken) == ("did not end (RuntimeError: no device)", None)
    assert check_races.say_consan(broken)[1] is None
    assert check_races.say_plain(broken) == ("did not end", "none", None)
    tool = "===== Internal Sanitizer Error: No luck.\n===== RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
    said = ("the tool itself failed (No luck)", None)
    assert check_races.say_racecheck(check_races.Outcome(9, tool)) == said


def test_what_the_checkers_say() -> None:
    """A failed assertion of ConSan, a fault in the code -> seen; a result after neither -> silent."""
    stopped = "/x/hopper_consume.py:157: unknown: block: [0,0,2], thread: [128,0,0] Assertion `Buffer busy` failed.\n"
    assert check_races.say_consan(check_races.Outcome(1, stopped)) == (
        "hopper_consume.py:157: Buffer busy",
        True,
    )
    quiet = "code: 5 arrivals, faults: none\nresult: 0 of 3 wrong\n"
    assert check_races.say_consan(check_races.Outcome(0, quiet)) == ("silent", False)
    assert check_races.say_plain(check_races.Outcome(0, quiet)) == ("0 of 3 wrong", "none", False)
    faulty = "code: 5 arrivals, faults: arrival 2: no barrier\nresult: 0 of 3 wrong\n"
    assert check_races.say_plain(check_races.Outcome(0, faulty))[1:] == ("arrival 2: no barrier", True)
