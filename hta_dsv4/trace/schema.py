"""Which fields of an event do we read? The entries of ``traceEvents`` as typed structs.

The structs declare only what the tables need; everything else is skipped by the decoder, which is where the
speed comes from. One struct per category, so that flows, Python frames and (where not wanted) CPU events are
skipped whole; a batch with an event of another kind is decoded again with one struct for all. Field order
follows Kineto's, as the decoder looks for the next declared field first. Numbers with a point arrive as their
text (``float_hook=str``), so no digit of a time is ever lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, Union

import msgspec

from hta_dsv4.trace.activities import KERNEL, MEMCPY, MEMSET

# Kineto's spelling today, and that of torch 1.8-1.11.
GPU_KINDS = {
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET,
    "Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET,
}  # fmt: skip
CATEGORY_NOW = {"Operator": "cpu_op", "Runtime": "cuda_runtime", "PythonFunction": "python_function"}
PYTHON = "python_function"
# What Kineto writes besides; anything else is reported, as it may be GPU time under a name we do not know.
OTHER_CATEGORIES = frozenset({
    "", "cpu_op", "user_annotation", "gpu_user_annotation", "cpu_instant_event", "overhead", "cuda_sync", "Trace",
    "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
    "glow_runtime", "privateuse1_runtime", "privateuse1_driver", "collective_comm", "cuda_profiler_range",
    "external_correlation", "ac2g", "fwdbwd", PYTHON,
})  # fmt: skip
FLOWS = frozenset({"ac2g", "fwdbwd"})  # arrows between events: never a row
KIND_CODE = {KERNEL: 0, MEMCPY: 1, MEMSET: 2}
NO_OBJECT = "entries of traceEvents that are no objects, ignored"
NO_PHASE = 'entries without a phase ("ph"), ignored'
NO_RAW = msgspec.Raw(b"")  # what an absent field holds: compare by identity


class Args(msgspec.Struct, gc=False):
    """The ``args`` of an event, as far as a table needs them; values as written."""

    external_id: Any = msgspec.field(name="External id", default=None)
    external_id_old: Any = msgspec.field(name="external id", default=None)
    device: Any = None
    stream: Any = None
    correlation: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared_mem: Any = msgspec.field(name="shared memory", default=None)
    grid: msgspec.Raw = NO_RAW
    block: msgspec.Raw = NO_RAW
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=NO_RAW)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_RAW)
    shapes_old: msgspec.Raw = msgspec.field(name="Input dims", default=NO_RAW)
    bytes: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)
    # what Kineto says of a collective, on the kernels that run it
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements: Any = msgspec.field(name="In msg nelems", default=None)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    split_in: Any = msgspec.field(name="In split size", default=None)
    split_out: Any = msgspec.field(name="Out split size", default=None)
    collective_dtype: Any = msgspec.field(name="dtype", default=None)
    process_group: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)


class CpuArgs(msgspec.Struct, gc=False):
    """What :class:`Args` has for events of the CPU: fewer fields are built, and fewer looked through, per event."""

    external_id: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=NO_RAW)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_RAW)
    shapes_old: msgspec.Raw = msgspec.field(name="Input dims", default=NO_RAW)
    external_id_old: Any = msgspec.field(name="external id", default=None)
    device: Any = None
    stream: Any = None


class GpuArgs(msgspec.Struct, gc=False):
    """What :class:`Args` has for activities."""

    external_id: Any = msgspec.field(name="External id", default=None)
    external_id_old: Any = msgspec.field(name="external id", default=None)
    device: Any = None
    stream: Any = None
    correlation: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared_mem: Any = msgspec.field(name="shared memory", default=None)
    grid: msgspec.Raw = NO_RAW
    block: msgspec.Raw = NO_RAW
    bytes: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)
    # what Kineto says of a collective, on the kernels that run it
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements: Any = msgspec.field(name="In msg nelems", default=None)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    split_in: Any = msgspec.field(name="In split size", default=None)
    split_out: Any = msgspec.field(name="Out split size", default=None)
    collective_dtype: Any = msgspec.field(name="dtype", default=None)
    process_group: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)


class CpuFields(msgspec.Struct, gc=False):
    """What is read of an event of the CPU, its category being told by its type."""

    ph: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: CpuArgs | None = None


class GpuFields(msgspec.Struct, gc=False):
    """What is read of an activity."""

    ph: str | None = None
    name: str | None = None
    pid: Any = None
    ts: Any = None
    dur: Any = None
    args: GpuArgs | None = None


class Event(msgspec.Struct, gc=False):
    """An event of any category."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class GpuEvent(GpuFields, gc=False):
    """An event of any category, read for its GPU side only."""

    cat: str | None = None


SKIPPED, GPU, CPU = 0, 1, 2  # what becomes of an event of a category


def _tagged(category: str, bases: tuple[type, ...], constants: dict[str, Any]) -> type:
    name = f"Category_{category}"
    return msgspec.defstruct(
        name, [], bases=bases or None, tag=category, tag_field="cat", namespace=constants, gc=False
    )


@cache  # thirty structs take longer to make than a small trace takes to read
def _decoder_by_category(
    cpu: bool, python_frames: bool
) -> tuple[msgspec.json.Decoder[list[Any]], dict[type, int]]:
    """A decoder with one struct per category: all fields for those read, nothing at all for those skipped."""
    read = set(GPU_KINDS)
    if cpu:
        read |= OTHER_CATEGORIES - FLOWS - {"", PYTHON}
    if cpu and python_frames:
        read.add(PYTHON)
    sides = {
        _tagged(c, (GpuFields if c in GPU_KINDS else CpuFields,), {"cat": c}): GPU if c in GPU_KINDS else CPU
        for c in sorted(read)
    }
    # A skipped event has no phase, so that nothing takes it for a complete one.
    skipped = sorted(OTHER_CATEGORIES - {""} - read)
    sides |= dict.fromkeys((_tagged(c, (), {"cat": c, "ph": ""}) for c in skipped), SKIPPED)
    union: Any = Union[tuple(sides)]  # noqa: UP007  # built at run time
    return msgspec.json.Decoder(list.__class_getitem__(union), float_hook=str), sides


class EventDecoder:
    """JSON arrays of events -> structs.

    Args:
        cpu: decode what the event table needs too.
        python_frames: decode Python frames too.
        note: called with (what, example, count) of values that are not what they should be.

    Attributes:
        sides: type of event -> :data:`GPU`, :data:`CPU` or :data:`SKIPPED`, for the types that tell.
        no_args: what stands for the ``args`` of an event without.
    """

    def __init__(self, cpu: bool, python_frames: bool, note: Callable[[str, str, int], None]) -> None:
        kind: Any = Event if cpu else GpuEvent
        self._kind, self._args = kind, Args if cpu else GpuArgs
        self.no_args: Any = self._args()
        self._note = note
        self._fast, self.sides = _decoder_by_category(cpu, python_frames)
        self._many: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[kind], float_hook=str)
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, float_hook=str)
        self._parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._untyped = msgspec.json.Decoder(float_hook=str)
        self._args_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            self._args | None, float_hook=str
        )

    def decode(self, text: memoryview) -> list[Any]:
        """Decode an array of events; raises what msgspec raises."""
        try:
            return self._fast.decode(text)
        except msgspec.ValidationError:  # a category not listed, or none: metadata events have none
            return self._many.decode(text)

    def split(self, text: bytes) -> list[Any]:
        """Decode an array event by event; what has the wrong type is read as far as it goes."""
        events: list[Any] = []
        odd: Counter[str] = Counter()  # told when all is read: what turns out not to decode is read again
        examples: dict[str, str] = {}

        def note(what: str, example: str) -> None:
            odd[what] += 1
            examples.setdefault(what, example)

        decode, no_object = self._one.decode, self._kind(ph="")
        for raw in msgspec.json.decode(text, type=list[msgspec.Raw]):
            try:
                events.append(decode(raw))
            except msgspec.ValidationError:
                view = memoryview(raw)
                if view[0] == ord("{"):
                    events.append(self._tolerant(raw, note))
                    continue
                odd[NO_OBJECT] += 1
                if odd[NO_OBJECT] == 1:
                    examples[NO_OBJECT] = bytes(view[:60]).decode("utf-8", "replace")
                events.append(no_object)
        for what, count in odd.items():
            self._note(what, examples[what], count)
        return events

    def _tolerant(self, raw: msgspec.Raw, note: Callable[[str, str], None]) -> Any:
        """Decode one object field by field, keeping what has the right type."""
        values: dict[str, Any] = {}
        parts = self._parts.decode(raw)
        for k, text in parts.items():
            if k in self._kind.__struct_fields__ and k != "args":
                try:
                    values[k] = self._untyped.decode(text)
                except msgspec.DecodeError:  # a number of thousands of digits: whoever wants it finds it odd
                    values[k] = bytes(text).decode("utf-8", "replace")
        for k in ("ph", "cat", "name"):
            v = values.get(k)
            if v is not None and not isinstance(v, str):
                note(f'events whose "{k}" is no text, read as text', repr(v)[:60])
                values[k] = str(v)
        if "args" in parts:
            try:
                values["args"] = self._args_decoder.decode(parts["args"])
            except msgspec.ValidationError:
                example = bytes(memoryview(parts["args"])[:60]).decode("utf-8", "replace")
                note('events whose "args" is no object, read without it', example)
        return self._kind(**values)
