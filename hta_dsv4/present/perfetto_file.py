"""Tracks as a Perfetto trace file: native track events, strings interned, packets by time.

Every text is written once and referred to by number, so a trace of 30,000 kernels takes a few MB.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.perfetto import Counter, Gpu, Slices

_SEQUENCE = 1
_NS_UNIT = 1  # CounterDescriptor.UNIT_TIME_NS


def perfetto_bytes(found: Sequence[Gpu], compress: bool = False) -> bytes:
    """Tracks in Perfetto's own format.

    Args:
        found: what to write.
        compress: gzip it; Perfetto opens both.

    Returns:
        The file's content: on every track begin and end alternate, each begin with its end.

    Raises:
        HtaDsv4Error: the package ``perfetto`` is not installed.
    """
    pb, new_builder = perfetto_library()
    out = io.BytesIO()
    builder = new_builder(out)
    for packet in _Writer(pb).packets(found):
        builder.write_packet(packet)
    content = out.getvalue()
    return gzip.compress(content, 6, mtime=0) if compress else content


def perfetto_library() -> tuple[Any, Any]:
    """Perfetto's messages and its builder of trace files; asked for first, it fails before any long work.

    Raises:
        HtaDsv4Error: the package ``perfetto`` is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ModuleNotFoundError as error:
        raise HtaDsv4Error(
            f"annotate needs {error.name}, which is not installed: pip install 'hta-dsv4[perfetto]'"
        ) from error
    return perfetto_trace_pb2, StreamingTraceProtoBuilder


class _Writer:
    """Makes the packets of one file."""

    def __init__(self, pb: Any) -> None:
        self.pb = pb
        self.uuids = iter(range(1, 1 << 62))
        self.interned: dict[str, dict[str, int]] = {}

    def packets(self, found: Sequence[Gpu]) -> Iterator[Any]:
        """All strings, descriptors, then events by time; ties keep the order within their track."""
        lowest = min((int(t.start[0]) for g in found for t in g.slices if len(t.start)), default=0)
        shift = -lowest if lowest < 0 else 0  # Perfetto's clock has no negative times
        events: list[tuple[int, Any]] = []
        descriptors: list[Any] = []
        for number, gpu in enumerate(found, 1):
            process = next(self.uuids)
            descriptor = self.descriptor(process, gpu.name)
            descriptor.process.pid = number
            descriptor.process.process_name = gpu.name
            descriptor.child_ordering = self.pb.TrackDescriptor.EXPLICIT
            descriptors.append(self.wrapped(descriptor))
            tracks: tuple[Slices | Counter, ...] = (*gpu.slices, *gpu.counters)
            for order, track in enumerate(tracks):
                uuid = next(self.uuids)
                descriptor = self.descriptor(uuid, track.name)
                descriptor.parent_uuid = process
                descriptor.sibling_order_rank = order
                descriptor.sibling_merge_behavior = self.pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
                if isinstance(track, Counter):
                    self.unit(descriptor, track)
                    events += self.counter(uuid, track, shift)
                else:
                    events += self.slices(uuid, track, shift)
                descriptors.append(self.wrapped(descriptor))
        events.sort(key=lambda e: e[0])  # stable
        yield self.strings()
        yield from descriptors
        for _, packet in events:
            yield packet

    def packet(self) -> Any:
        packet = self.pb.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def descriptor(self, uuid: int, name: str) -> Any:
        descriptor = self.pb.TrackDescriptor()
        descriptor.uuid = uuid
        descriptor.name = _text(name)
        return descriptor

    def wrapped(self, descriptor: Any) -> Any:
        packet = self.packet()
        packet.track_descriptor.CopyFrom(descriptor)
        return packet

    def unit(self, descriptor: Any, track: Counter) -> None:
        if track.unit == "ns":
            descriptor.counter.unit = _NS_UNIT
        else:
            descriptor.counter.unit_name = track.unit
            descriptor.counter.SetInParent()

    def event(self, uuid: int, time: int, kind: int) -> Any:
        packet = self.packet()
        packet.timestamp = time
        packet.sequence_flags = self.pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        packet.track_event.track_uuid = uuid
        packet.track_event.type = kind
        return packet

    def counter(self, uuid: int, track: Counter, shift: int) -> Iterable[tuple[int, Any]]:
        kind = self.pb.TrackEvent.TYPE_COUNTER
        for time, value in zip(track.time.tolist(), track.value.tolist(), strict=True):
            packet = self.event(uuid, time + shift, kind)
            packet.track_event.counter_value = value
            yield time, packet

    def slices(self, uuid: int, track: Slices, shift: int) -> Iterable[tuple[int, Any]]:
        begin, end = self.pb.TrackEvent.TYPE_SLICE_BEGIN, self.pb.TrackEvent.TYPE_SLICE_END
        rows = zip(track.start.tolist(), track.end.tolist(), track.names, strict=True)
        for i, (start, finish, name) in enumerate(rows):
            packet = self.event(uuid, start + shift, begin)
            event = packet.track_event
            event.name_iid = self.intern("event_names", name)
            event.category_iids.append(self.intern("event_categories", track.category))
            if track.group:
                event.correlation_id_str_iid = self.intern("correlation_id_str", track.group)
            for key, values in track.annotations.items():
                value = values[i]
                if value is None:
                    continue
                note = event.debug_annotations.add()
                note.name_iid = self.intern("debug_annotation_names", key)
                if isinstance(value, int):
                    note.int_value = value
                else:
                    note.string_value_iid = self.intern("debug_annotation_string_values", value)
            yield start, packet
            yield finish, self.event(uuid, finish + shift, end)

    def intern(self, kind: str, text: str) -> int:
        """The number of a text."""
        known = self.interned.setdefault(kind, {})
        return known.setdefault(text, len(known) + 1)

    def strings(self) -> Any:
        """The first packet: every text with its number. Events are sorted later, so no event can carry its own."""
        packet = self.packet()
        packet.sequence_flags = self.pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.first_packet_on_sequence = True
        for kind, known in self.interned.items():
            for text, number in known.items():
                entry = getattr(packet.interned_data, kind).add()
                entry.iid = number
                if kind in ("correlation_id_str", "debug_annotation_string_values"):
                    entry.str = text.encode("utf-8", errors="backslashreplace")
                else:
                    entry.name = _text(text)
        return packet


def _text(text: str) -> str:
    """Text that protobuf takes: a lone surrogate, which JSON allows, becomes its escape."""
    return text.encode("utf-8", errors="backslashreplace").decode()
