"""What cannot be captured for want of memory, a GPU or a folder is said before anything is built."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from hta_dsv4.capture import caches, command
from hta_dsv4.capture.command import CaptureOptions, build_step, check_options
from hta_dsv4.capture.config import FLASH, PRO, StepShape, model_config
from hta_dsv4.capture.memory import least_bytes
from hta_dsv4.errors import HtaDsv4Error

SMALL = CaptureOptions(config="tiny", device="cpu", context=64, max_context=256, concurrency=2)


def tensors(value: object) -> Iterator[torch.Tensor]:
    """All tensors in a value's fields and items."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


@pytest.mark.parametrize(("batch", "context"), [(16, 600), (64, 600)])
def test_estimate_is_a_bound_and_near(tmp_path: Path, batch: int, context: int) -> None:
    """A step that is built -> its tensors take what was said at least, and less than three times it."""
    options = replace(SMALL, concurrency=batch, context=context, max_context=2048, out=tmp_path)
    step = build_step(options)
    stored = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in tensors([step.weights, step.tables, step.caches, step.rope])
    }
    said = least_bytes(model_config("tiny"), options.shape)
    assert said <= sum(stored.values()) < 3 * said


@pytest.mark.parametrize(
    ("indexer", "batch", "max_context", "peak"),
    [
        ("torch_fp32", 32, 1 << 20, 20.9), ("torch_fp32", 64, 1 << 20, 32.0), ("torch_fp32", 256, 1 << 20, 98.1),
        ("triton", 32, 1 << 20, 11.3), ("triton", 256, 1 << 20, 20.6), ("triton", 1024, 1 << 16, 52.5),
        ("triton", 4096, 1 << 16, 118.1),
    ],
)  # fmt: skip
def test_estimate_is_near_what_an_h200_took(indexer: str, batch: int, max_context: int, peak: float) -> None:
    """GB that torch had allocated at the most on an H200 -> never less than said, and at most 1.2 times it."""
    said = least_bytes(FLASH, StepShape(batch, 4096, max_context), indexer) / 1e9
    assert said < peak < 1.2 * said


def test_pools_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool larger than is drawn at once -> as many pages, and every one of them drawn."""
    generator = torch.Generator().manual_seed(1)
    table = caches.page_table(3, 4, 4, 64, generator)
    whole = caches.random_kv_pool(table, generator.manual_seed(2)).data
    keys = caches.random_index_pool(table, generator.manual_seed(2)).data
    monkeypatch.setattr(caches, "_AT_ONCE", 5 * 64)
    parts = caches.random_kv_pool(table, generator.manual_seed(2)).data
    assert parts.shape == whole.shape == (table.pool_pages, whole.shape[1])
    assert table.pool_pages % 5
    assert all(page.count_nonzero() > 30_000 for page in parts)
    part_keys = caches.random_index_pool(table, generator.manual_seed(2)).data
    assert part_keys.shape == keys.shape
    assert all(page.count_nonzero() > 7_000 for page in part_keys)


def test_what_was_captured_fits_its_gpu() -> None:
    """The published shapes -> below 141 GB; the large model at a thousand times the requests -> above."""
    assert least_bytes(FLASH, StepShape(64, 4096, 1 << 20)) < 40e9
    assert least_bytes(PRO, StepShape(32, 4096, 1 << 20)) < 141e9
    assert least_bytes(PRO, StepShape(32_000, 4096, 1 << 20)) > 141e9


@pytest.mark.parametrize("sizes", [{"concurrency": 100_000_000}, {"context": 10**10, "max_context": 10**10}])
def test_too_large_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    """More requests or tokens than any memory holds -> one line with both sizes, and nothing is built."""
    monkeypatch.setattr(command, "DecodeStep", lambda *_args, **_kw: pytest.fail("must not be built"))
    start = time.monotonic()
    with pytest.raises(HtaDsv4Error, match=r"out of memory .*at least [\d,]+ GB, this machine has .*lower"):
        build_step(replace(SMALL, out=tmp_path, **sizes))  # type: ignore[arg-type]
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("config", ["flash", "pro"])
def test_full_model_on_a_cpu(tmp_path: Path, config: str) -> None:
    """--device cpu with a model of full size -> one line naming --config tiny."""
    with pytest.raises(HtaDsv4Error, match=r"--device cpu: .*--config tiny"):
        check_options(replace(SMALL, config=config, out=tmp_path))


@pytest.mark.parametrize("name", ["none/a.json", "none/below", "none/below/a.trace.json.gz"])
def test_out_in_a_folder_that_is_not_there(tmp_path: Path, name: str) -> None:
    """--out below a missing folder -> one line naming it, and no folder is made; a folder in one there is -> made."""
    with pytest.raises(HtaDsv4Error, match=r"there is no folder .*none.*; make it"):
        check_options(replace(SMALL, out=tmp_path / name))
    assert list(tmp_path.iterdir()) == []
    check_options(replace(SMALL, out=tmp_path / "new"))
    check_options(replace(SMALL, out=tmp_path / "a.json"))
