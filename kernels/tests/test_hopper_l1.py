"""What the driver is asked for so that L1 gets what a kernel leaves of shared memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dsv4_kernels import hopper_l1


@pytest.mark.parametrize(
    ("shared", "percent"),
    # 128 and 196 KB less the kilobyte the system keeps, to the byte; more than there is asks for all.
    [(137_000, 71), (177_600, 85), (195 * 1024, 85), (195 * 1024 + 1, 100), (214_376, 100), (10**6, 100)],
)
def test_percent(shared: int, percent: int) -> None:
    """Bytes of shared memory -> the smallest part of an sm_90 SM that holds them and the system's kilobyte."""
    assert hopper_l1.carveout(shared) == percent


def test_a_kernel_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches of one kernel and one of another -> the driver hears of each once."""
    heard: list[tuple[Any, int, int]] = []
    driver = SimpleNamespace(cuFuncSetAttribute=lambda handle, *rest: heard.append((handle.value, *rest)))
    monkeypatch.setattr(hopper_l1, "_driver", lambda: driver)
    monkeypatch.setattr(hopper_l1, "_told", set())
    one, other = (
        SimpleNamespace(function=handle, metadata=SimpleNamespace(shared=shared))
        for handle, shared in ((11, 177_600), (12, 214_376))
    )
    for kernel in (one, one, other):
        hopper_l1.leave_rest_to_l1(kernel)
    assert heard == [(11, 9, 85), (12, 9, 100)]


def test_no_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No libcuda to ask -> nothing happens."""
    monkeypatch.setattr(hopper_l1, "_driver", lambda: None)
    monkeypatch.setattr(hopper_l1, "_told", set())
    hopper_l1.leave_rest_to_l1(SimpleNamespace(function=1, metadata=SimpleNamespace(shared=1)))
