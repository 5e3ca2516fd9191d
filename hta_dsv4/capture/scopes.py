"""Names for the parts of the step, shown in a trace and free when nobody traces.

``torch.profiler.record_function`` costs two dispatcher calls even with no profiler on: about 10 us a scope on a
server CPU, 10 ms over the 900 scopes of a step. :func:`scope` looks at one flag first and hands out one shared
do-nothing object when it is down.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.autograd import profiler as _autograd_profiler

_FLAG = "_is_profiler_enabled"
NOTHING: AbstractContextManager[object] = nullcontext()  # shared by all who do not trace


def profiler_on() -> bool:
    """Whether a torch profiler is recording in this process."""
    return bool(getattr(_autograd_profiler, _FLAG, False))


def mark_profiler(ours: bool) -> None:
    """Leave a mark in torch's flag that :func:`profiler_marked` finds until some profiler starts or stops.

    Torch sets the flag to ``True`` or ``False``; an int of the same truth means the same to whoever reads it.

    Args:
        ours: ``False`` takes the mark out.
    """
    on = profiler_on()
    setattr(_autograd_profiler, _FLAG, int(on) if ours else on)


def profiler_marked() -> bool:
    """Whether no torch profiler has started or stopped since :func:`mark_profiler`."""
    return type(getattr(_autograd_profiler, _FLAG, False)) is int


def scope(name: str) -> AbstractContextManager[object]:
    """A ``user_annotation`` range called ``name`` while a profiler records, else nothing.

    Under ``torch.compile`` it is always nothing: reading the flag there would make the compiled code depend on
    it and compile the step again as soon as the profiler starts.

    Args:
        name: the part of the model, e.g. ``layer.7/indexer/logits``.
    """
    if torch.compiler.is_compiling() or not profiler_on():
        return NOTHING
    return torch.profiler.record_function(name)
