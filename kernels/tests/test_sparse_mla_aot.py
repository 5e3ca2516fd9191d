"""The sparse-MLA kernels compiled for sm_90, sm_100 and sm_120 on a machine without a GPU.

Every configuration that :mod:`dsv4_kernels.select` can choose is compiled for every target it can be chosen
on, and the machine code is read: no spills, shared memory within the block's limit, tensor-core
instructions where they are meant to be and none in the baseline.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from dsv4_kernels.select import SMALL, WGMMA, MmaConfig, combine_config


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
SM90_SHARED_LIMIT = 227 * 1024
COMMON = {
    "sink_ptr": "*fp32", "kv_ptr": "*u8", "page_stride": "i32:16", "index_ptr": "*i32", "width": "i32:16",
    "length_ptr": "*i32", "extra_kv_ptr": "*u8", "extra_page_stride": "i32:16", "extra_index_ptr": "*i32",
    "extra_width": "i32:16", "extra_length_ptr": "*i32", "heads": "i32:16", "scale_log2": "fp32",
    "q_ptr": "*bf16",
}  # fmt: skip


def mma_request(kernel: str, config: MmaConfig, target: int, ragged: bool, single: bool) -> object:
    """The request that launching ``kernel`` with ``config`` on a 128 + 512 call would compile."""
    constants = {
        "q_len": 1, "PAGE_SIZE": 128, "EXTRA_PAGE_SIZE": 64, "HAS_EXTRA": True, "HAS_LENGTH": ragged,
        "HAS_EXTRA_LENGTH": ragged, "BLOCK_H": config.block_h, "BLOCK_T": config.block_t,
        "TILES": list(config.tiles), "OPERAND": "tl.bfloat16", "STAGES": config.stages, "AHEAD": config.ahead,
        "SINGLE": single, "PDL": config.pdl,
    }  # fmt: skip
    if kernel == "mma":
        signature = COMMON | {"out_ptr": "*bf16", "lse_ptr": "*fp32"}
        constants |= {"HAS_SINK": True, "SGLANG": False}
    else:
        signature = COMMON | {"partial_ptr": "*bf16", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
    module, name = f"dsv4_kernels.{kernel}", f"_sparse_mla_{kernel}_kernel"
    return aot.Request(
        module, name, target, signature, constants, config.warps, options={"launch_pdl": config.pdl}
    )


def combine_request(rows: int, splits: int, target: int) -> object:
    """The combine's request for a batch of ``rows`` with 64 heads."""
    config = combine_config(rows, 64)
    signature = {"partial_ptr": "*bf16", "max_ptr": "*fp32", "sum_ptr": "*fp32", "out_ptr": "*bf16",
                 "lse_ptr": "*fp32", "sink_ptr": "*fp32", "heads": "i32:16"}  # fmt: skip
    constants = {"NSPLIT": splits, "SPLITS_POW2": 1 << (splits - 1).bit_length(), "HAS_SINK": True,
                 "SGLANG": False, "BLOCK_H": config.block_h, "COLUMNS": config.columns, "EAGER": config.eager,
                 "PDL": config.pdl}  # fmt: skip
    return aot.Request(
        "dsv4_kernels.split_k", "_sparse_mla_combine_kernel", target, signature, constants, config.warps
    )


def simt_request(target: int) -> object:
    """The baseline's request."""
    names = ("q_ptr", "kv_ptr", "page_stride", "index_ptr", "length_ptr", "heads", "scale_log2")
    signature = {name: COMMON[name] for name in names} | {"out_ptr": "*bf16", "lse_ptr": "*fp32"}
    constants = {"q_len": 1, "WIDTH": 512, "PAGE_SIZE": 64, "HAS_LENGTH": True, "BLOCK_T": 16}
    return aot.Request("dsv4_kernels.simt", "_sparse_mla_simt_kernel", target, signature, constants, 4, 2)


def wanted() -> dict[str, object]:
    """Every request, by a name that says what it is."""
    requests: dict[str, object] = {}
    assert WGMMA.short is not None
    for i, config in enumerate(WGMMA.single):
        requests[f"split_k wgmma single{i} sm_90"] = mma_request("split_k", config, 90, False, True)
    for ragged in (False, True):
        tail = "ragged " if ragged else ""
        requests[f"split_k wgmma short {tail}sm_90"] = mma_request("split_k", WGMMA.short, 90, ragged, False)
        requests[f"split_k wgmma loop {tail}sm_90"] = mma_request("split_k", WGMMA.loop, 90, ragged, False)
        requests[f"mma wgmma loop {tail}sm_90"] = mma_request("mma", WGMMA.loop, 90, ragged, False)
    for target in (90, 100, 120):
        narrow = replace(SMALL.loop, block_h=16)
        for i, config in enumerate(SMALL.single):
            requests[f"split_k small single{i} sm_{target}"] = mma_request(
                "split_k", config, target, False, True
            )
        requests[f"split_k small loop sm_{target}"] = mma_request("split_k", SMALL.loop, target, True, False)
        requests[f"split_k small narrow sm_{target}"] = mma_request("split_k", narrow, target, True, False)
        requests[f"mma small loop sm_{target}"] = mma_request("mma", SMALL.loop, target, False, False)
        requests[f"simt sm_{target}"] = simt_request(target)
        for rows, splits in ((1, 20), (4, 20), (32, 4), (64, 2)):
            requests[f"combine {rows} sm_{target}"] = combine_request(rows, splits, target)
    return requests


REQUESTS = wanted()


@pytest.fixture(scope="module")
def compiled() -> dict[str, object]:
    """All of them compiled, side by side in child processes (the interpreter rules this one out)."""
    return dict(zip(REQUESTS, aot.compile_all(list(REQUESTS.values())), strict=True))


@pytest.mark.parametrize("name", list(REQUESTS))
def test_machine_code(name: str, compiled) -> None:  # type: ignore[no-untyped-def]
    """A configuration on a target it can be chosen on -> compiles, fits, spills nothing, right instructions."""
    result = compiled[name]
    assert result.error == ""
    assert "BPT" not in result.opcodes, "the compiler gave up and emitted a trap"
    # The baseline is kept as it was found: Triton 3.6 spills 14 registers of it on sm_100, 3.7 none.
    assert result.spills <= (14 if name == "simt sm_100" else 0)
    limit = SM90_SHARED_LIMIT if "wgmma" in name else aot.SM120_SHARED_LIMIT
    assert result.shared <= limit
    if name.startswith(("simt", "combine")):
        assert result.tensor_core == 0
    else:
        assert result.tensor_core > 0
    if "wgmma" in name and "single0" not in name:  # 16 heads a program are mma.sync's, not wgmma's
        assert result.opcodes.get("HGMMA", 0) > 0


def test_a_broken_request_is_reported() -> None:
    """A kernel that cannot compile -> an error in the result, not an exception or an empty success."""
    bad = replace(REQUESTS["simt sm_90"], constexprs=REQUESTS["simt sm_90"].constexprs | {"BLOCK_T": 17})  # type: ignore[attr-defined,type-var]
    (result,) = aot.compile_all([bad])
    assert "17" in result.error or "power of 2" in result.error
