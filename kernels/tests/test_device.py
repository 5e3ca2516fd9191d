"""Which GPU a launch goes to, and how many SMs it is planned for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dsv4_kernels import _device


def on(index: int) -> Any:
    """What :func:`launching` looks at of a tensor on a GPU."""
    return SimpleNamespace(device=torch.device("cuda", index))


def test_launches_go_to_the_tensors_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on GPU 1 while GPU 0 is current -> GPU 1 is made current for the launch; on GPU 0 nothing is done."""
    entered = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "device", lambda device: entered.append(device.index) or _device.nullcontext()
    )
    with _device.launching(on(1)):
        pass
    with _device.launching(on(0)), _device.launching(torch.zeros(1)):
        pass
    assert entered == [1]


def test_cpu_counts_as_a_few_sms() -> None:
    """A CPU tensor -> the interpreter's SMs for plain grids, the campaign's card for the split policy."""
    assert _device.num_sms(torch.zeros(1)) == _device.INTERPRETER_SMS
    assert _device.describe_device(torch.zeros(1)) == _device.INTERPRETED_DEVICE
