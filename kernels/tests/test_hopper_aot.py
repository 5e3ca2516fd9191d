"""The Hopper form compiled for sm_90 on a machine without a GPU, and its machine code read.

Compiled once a form, ragged and whole by turns; Triton's disk cache makes a second run cheap.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
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
    name: request(config, whole=i % 2 == 1, ragged=i >= 2) for i, (name, config) in enumerate(FORMS.items())
}


@pytest.fixture(scope="module")
def made() -> dict[str, object]:
    """All forms compiled, side by side in child processes (the interpreter rules this one out)."""
    return dict(zip(REQUESTS, aot.compile_all(list(REQUESTS.values())), strict=True))


@pytest.mark.parametrize("name", list(FORMS))
def test_machine_code(name: str, made) -> None:  # type: ignore[no-untyped-def]
    """A form on sm_90 -> compiles, fits a block's shared memory, products by wgmma, hardly a spill."""
    result = made[name]
    assert result.error == ""
    assert result.shared <= 227 * 1024
    assert result.registers * 384 <= 65_536
    # QK once (512 columns, 16 a product), PV in two halves of the columns: the follower has no QK of its own.
    assert result.opcodes["HGMMA"] == 32 + 2 * FORMS[name].block_t // 16
    assert result.opcodes["USETMAXREG"] > 0, "the groups of warps share out the registers"
    # 0 to 30 seen, nearly all of them outside the loops.
    assert result.spills <= 40
    assert 0 < result.opcodes["BAR"] <= 36
