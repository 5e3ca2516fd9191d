"""The Hopper form compiled for sm_90 on a machine without a GPU, and its machine code read.

Each form as a split and, ragged, as a whole row; Triton's disk cache makes a second run cheap.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
from dsv4_kernels.hopper_l1 import carveout
from dsv4_kernels.hopper_select import FORMS, HopperConfig
from dsv4_kernels.hopper_support import missing_from_gluon

pytestmark = pytest.mark.skipif(
    missing_from_gluon() is not None, reason=f"this Triton has no {missing_from_gluon()}"
)


def _load_aot() -> ModuleType:
    # Tests are imported by path (importlib mode), so a module beside them is too.
    spec = importlib.util.spec_from_file_location("dsv4_aot", Path(__file__).with_name("aot.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dsv4_aot"] = module
    spec.loader.exec_module(module)
    return module


aot = _load_aot()
SIGNATURE = {
    "q_ptr": "*bf16", "out_ptr": "*bf16", "lse_ptr": "*fp32", "sum_ptr": "*fp32", "sink_ptr": "*fp32",
    "kv_ptr": "*u8", "page_stride": "i32:16", "index_ptr": "*i32", "width": "i32:16", "length_ptr": "*i32",
    "extra_kv_ptr": "*u8", "extra_page_stride": "i32:16", "extra_index_ptr": "*i32", "extra_width": "i32:16",
    "extra_length_ptr": "*i32", "heads": "i32:16", "scale_log2": "fp32",
}  # fmt: skip


def request(config: HopperConfig, whole: bool, ragged: bool) -> object:
    """What a call of 128 + 512 tokens would compile."""
    shape = {name.upper(): value for name, value in asdict(config).items()}
    constants = shape | {
        "q_len": 1, "PAGE_SIZE": 128, "EXTRA_PAGE_SIZE": 64, "HAS_EXTRA": True, "HAS_LENGTH": ragged,
        "HAS_EXTRA_LENGTH": ragged, "HAS_SINK": True, "SGLANG": False, "WHOLE": whole,
    }  # fmt: skip
    return aot.Request(
        "dsv4_kernels.hopper", "_sparse_mla_hopper_kernel", 90, SIGNATURE, constants, 4,
        options={"launch_pdl": True},
    )  # fmt: skip


REQUESTS = {
    (name, whole): request(config, whole, ragged=whole)
    for name, config in FORMS.items()
    for whole in (False, True)
}


@pytest.fixture(scope="module")
def made() -> dict[tuple[str, bool], object]:
    """All forms compiled, side by side in child processes (the interpreter rules this one out)."""
    return dict(zip(REQUESTS, aot.compile_all(list(REQUESTS.values())), strict=True))


@pytest.mark.parametrize(("name", "whole"), list(REQUESTS))
def test_machine_code(name: str, whole: bool, made) -> None:  # type: ignore[no-untyped-def]
    """A form on sm_90 -> compiles, fits a block's shared memory, products by wgmma, hardly a spill."""
    result = made[name, whole]
    assert result.error == ""
    assert result.shared <= 227 * 1024
    assert result.registers * 384 <= 65_536
    # QK once (512 columns, 16 a product), PV in two halves of the columns: the follower has no QK of its own.
    assert result.opcodes["HGMMA"] == 32 + 2 * FORMS[name].block_t // 16
    assert result.opcodes["USETMAXREG"] > 0, "the groups of warps share out the registers"
    # One reload a block in the scorer's loop, the others outside the loops.
    assert result.spills <= (0 if name == "loop" else 12)
    assert 0 < result.opcodes["BAR"] <= 40
    # After the query's copy, and in each consumer. In the gathering warps it would wait for their loads.
    assert result.opcodes["MEMBAR"] == 3


def test_the_loop_leaves_l1_its_part(made) -> None:  # type: ignore[no-untyped-def]
    """The form for long lists -> its shared memory fits the part of 196 KB, so that L1 has 60."""
    for whole in (False, True):
        assert carveout(made["loop", whole].shared) == 85
