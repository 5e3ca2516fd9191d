"""When "auto" takes the Hopper form and in which shape, and how calls that cannot have it are told.

The form itself runs on sm_90 only (Gluon has no interpreter): ``benchmarks/check_gpu.py`` compares it with the
reference there, ``test_hopper_aot.py`` reads its machine code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dsv4_kernels import decode, hopper_support, pack_kv, sparse_mla_decode
from dsv4_kernels._device import Device
from dsv4_kernels.call import make_call
from dsv4_kernels.hopper_select import FORMS, Measured, choose, hopper_splits, measurements, parse
from dsv4_kernels.hopper_support import missing_from_gluon, unavailable
from dsv4_kernels.select import LARGEST_SPLITS, MAX_SPLITS, count_blocks
from hypothesis import given
from hypothesis import strategies as st

H200 = Device(90, 132, 232_448)
WIDTHS = (128, 512)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without Triton's interpreter."""
    monkeypatch.setattr(hopper_support, "interpreting", lambda: False)


def test_the_shipped_choices_can_run() -> None:
    """Every entry of the file -> a known form, a combine that covers the columns, a time."""
    assert {entry.widths for entry in measurements()} == {(128, 512), (512,), (128, 1024)}
    for entry in measurements():
        assert entry.choice.form in (*FORMS, "split_k")
        assert 512 % entry.choice.combine.columns == 0
        assert entry.microseconds > 0
        assert entry.rows >= 1


@pytest.mark.parametrize("entry", measurements(), ids=lambda entry: f"{entry.rows}x{sum(entry.widths)}")
def test_what_was_measured_is_what_runs(entry: Measured) -> None:
    """A call that was measured on the card -> the form and combine that were fastest, in one wave of its SMs."""
    assert choose(entry.rows, 64, entry.widths) == entry.choice
    if entry.choice.form != "split_k":
        block_t = FORMS[entry.choice.form].block_t
        splits = hopper_splits(entry.rows, 64, entry.widths, 132, block_t)
        assert splits * entry.rows <= 132
        blocks = count_blocks(entry.widths, block_t)
        assert splits == blocks or (splits + 1) * entry.rows > 132, "an SM is left without work"


@pytest.mark.parametrize("heads", [1, 64, 65, 128])
def test_the_nearest_measurement_decides(heads: int) -> None:
    """Shapes and batches in between, past the ends, of several head groups -> a neighbour's choice."""
    text = json.dumps({"choices": [
        {"tokens": [tokens], "rows": rows, "form": form, "combine": [1, 512, 4], "eager": False, "microseconds": 1}
        for tokens, rows, form in ((64, 1, "loop"), (64, 100, "split_k"), (6400, 1, "one_block"))
    ]})  # fmt: skip
    small, many, long = parse(text)
    groups = -(-heads // 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsv4_kernels.hopper_select.measurements", lambda: (small, many, long))
        assert choose(1, heads, (10,)) == small.choice
        assert choose(9 // groups, heads, (64,)) == small.choice
        assert choose(12, heads, (64,)) == many.choice
        assert choose(4096, heads, (64,)) == many.choice
        assert choose(1, heads, (3000, 4000)) == long.choice


@given(
    st.integers(1, 4096), st.sampled_from((8, 64, 128)), st.lists(st.integers(1, 8192), min_size=1, max_size=2),
    st.integers(1, 200), st.sampled_from((32, 64)), st.one_of(st.none(), st.integers(1, 10**9)),
)  # fmt: skip
def test_split_bounds(
    rows: int, heads: int, widths: list[int], sms: int, block_t: int, splits: int | None
) -> None:
    """Any shapes -> at least one split, no more than blocks, chosen ones in a single wave."""
    count = hopper_splits(rows, heads, tuple(widths), sms, block_t, splits)
    assert 1 <= count <= min(LARGEST_SPLITS, count_blocks(tuple(widths), block_t))
    if splits is None:
        assert count <= MAX_SPLITS
        assert count == 1 or count * rows * -(-heads // 64) <= sms


@pytest.mark.usefixtures("compiled")
def test_only_hopper_cards() -> None:
    """Another architecture, or less shared memory -> the reason, in words that follow "needs"."""
    assert unavailable(H200) is None
    assert unavailable(Device(120, 188, 101_376)) == "an sm_90 GPU, this is sm_120"
    assert unavailable(Device(100, 148, 232_448)) == "an sm_90 GPU, this is sm_100"
    assert unavailable(Device(90, 132, 101_376)) == (
        "232448 bytes of shared memory a block, this GPU gives 101376"
    )


@pytest.mark.usefixtures("compiled")
def test_a_triton_without_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Gluon that lacks a name, or no Gluon -> named, and the plain form stays; renamed names do no harm."""
    missing_from_gluon.cache_clear()
    monkeypatch.setitem(hopper_support._NEEDED, "json", ("loads", ("dumps", "gone"), ("gone", "gone_too")))
    assert unavailable(H200) == "json.gone, which this Triton has not"
    missing_from_gluon.cache_clear()
    monkeypatch.setitem(hopper_support._NEEDED, "json", ("loads",))
    monkeypatch.setitem(hopper_support._NEEDED, "no_such_module", ("jit",))
    assert unavailable(H200) == "no_such_module, which this Triton has not"
    missing_from_gluon.cache_clear()


def a_call() -> Any:
    """A small call on the CPU."""
    indices = torch.zeros(1, 1, 8, dtype=torch.int32)
    return make_call(torch.randn(1, 1, 4, 512).bfloat16(), pack_kv(torch.randn(8, 512), 8), indices)


def test_asking_for_it_where_it_cannot_run() -> None:
    """variant="hopper" under the interpreter -> one line that says what it needs."""
    call = a_call()
    with pytest.raises(ValueError, match=r"^variant: 'hopper' needs a GPU, Gluon has no interpreter$"):
        sparse_mla_decode(
            call.q[None], call.scopes[0].cache, torch.zeros(1, 1, 8, dtype=torch.int32), variant="hopper"
        )


def test_auto_runs_the_plain_form_elsewhere() -> None:
    """A call where the Hopper form cannot run -> what split_k gives, to the bit."""
    call = a_call()
    for auto, plain in zip(decode.run_call(call, "auto"), decode.run_call(call, "split_k"), strict=True):
        assert torch.equal(auto, plain)


@pytest.mark.parametrize(
    ("variant", "rows", "expected"),
    [("auto", 1, "split_k"), ("auto", 100, "loop"), ("hopper", 1, "one_block"), ("hopper", 100, "loop")],
)  # fmt: skip
def test_on_sm_90(variant: Any, rows: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 -> auto takes what was measured fastest, "hopper" a Hopper form even where another was faster."""
    text = json.dumps({"choices": [
        {"tokens": WIDTHS, "rows": rows, "form": form, "combine": [1, 512, 4], "eager": False, "microseconds": 1}
        for rows, form in ((1, "split_k"), (100, "loop"))
    ]})  # fmt: skip
    monkeypatch.setattr("dsv4_kernels.hopper_select.measurements", lambda: parse(text))
    taken = []
    monkeypatch.setattr(decode, "describe_device", lambda tensor: H200)
    monkeypatch.setattr(decode, "unavailable", lambda device: None)
    monkeypatch.setattr(
        decode, "run_choice", lambda call, choice, splits: taken.append((choice.form, splits))
    )
    call = SimpleNamespace(q=torch.empty(1), rows=rows, heads=64, widths=WIDTHS)
    decode.run_call(call, variant, 3)  # type: ignore[arg-type]
    assert taken == [(expected, 3)]


def test_a_query_at_an_odd_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contiguous query 2 bytes into its memory -> auto is split_k, "hopper" an error that says what it needs."""
    monkeypatch.setattr(decode, "unavailable", lambda device: None)
    call = a_call()
    moved = torch.cat([torch.zeros(1).bfloat16(), call.q.flatten()])[1:].view(call.q.shape)
    odd = replace(call, q=moved)
    for auto, plain in zip(decode.run_call(odd, "auto"), decode.run_call(call, "split_k"), strict=True):
        assert torch.equal(auto, plain)
    with pytest.raises(ValueError, match="'hopper' needs a query that starts on a multiple of 16 bytes"):
        decode.run_call(odd, "hopper")


def test_a_call_loads_no_gluon() -> None:
    """The package, and a call under the interpreter -> the Hopper kernel's module is not imported."""
    code = (
        "import conftest, sys, torch; from dsv4_kernels import pack_kv, sparse_mla_decode\n"
        "sparse_mla_decode(torch.randn(1, 1, 4, 512).bfloat16(), pack_kv(torch.randn(8, 512), 8),"
        " torch.zeros(1, 1, 8, dtype=torch.int32))\n"
        "print([name for name in sys.modules if name.startswith('dsv4_kernels.hopper')])"
    )
    # With -c Python looks for modules in the folder it is started in: conftest sets the interpreter up.
    here = Path(__file__).parent
    path = os.pathsep.join(str(Path(part).resolve()) for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout.strip() == "['dsv4_kernels.hopper_select', 'dsv4_kernels.hopper_support']"
