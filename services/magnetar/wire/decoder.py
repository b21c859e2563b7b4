"""Decodes the bytes of a connection into events: the hottest code of the system.

`FrameDecoder` suits `asyncio.BufferedProtocol`: the transport reads into `get_buffer()`, and
`received(n)` returns the events of all complete frames. In a stream of SENDs, the loop of
`_take_sends` reads a frame's head, scans the few fields of its command in place, copies the entry
and verifies its CRC-32C: five calls in C and none in Python per frame. A command that differs from
the bytes of official clients takes the slow path through protobuf (`commands.py`), which returns
the same events. SENDs are grouped by producer, so that a client that spreads its messages over the
partitions of a topic also gets runs.

A frame that makes the stream unreadable (too large, contradictory sizes, a command that cannot be
parsed) raises `ProtocolError` with the events decoded before it; the caller closes the connection.
A SEND with a damaged entry is only a `BadSend`.

Bounds: frames of `frame_bytes_max`, their first four bytes included; memory as in
`receive_buffer.py`.
"""

from struct import Struct
from typing import Final, cast

from magnetar.wire._pb.PulsarApi_pb2 import CommandAck, CommandFlow, CommandSend
from magnetar.wire.checksum import crc32c, entry_fault
from magnetar.wire.commands import CommandType, parse_command
from magnetar.wire.events import (
    BadSend,
    Command,
    Event,
    Flow,
    Send,
    SendRun,
    UncheckedSends,
)
from magnetar.wire.framing import (
    CHECKED_ENTRY_HEADER,
    CHECKSUM_MAGIC,
    FRAME_BYTES_MAX_DEFAULT,
    FRAME_HEADER,
    ProtocolError,
)
from magnetar.wire.hot import (
    COMMAND_BYTES_MAX,
    DELIVER_AT_TAG,
    MESSAGE_COUNT_MAX,
    may_be_delayed,
    plain_ack,
    plain_send,
    scan_ack,
    scan_flow,
    txn_send,
)
from magnetar.wire.receive_buffer import BUFFER_BYTES_DEFAULT, ReceiveBuffer

# Read from the enum once: its attributes are computed on every access.
_SEND: Final = CommandType.SEND
_ACK: Final = CommandType.ACK
_FLOW: Final = CommandType.FLOW
_ACK_START: Final = bytes((0x08, _ACK))
_FLOW_START: Final = bytes((0x08, _FLOW))

# The head of a frame as far as the first field of a plain SEND: total, command size, the first four
# bytes of the command (type=SEND, tag of `send`, its length); tag and first byte of producer id.
_head_at: Final = Struct(">IIIBB").unpack_from
_entry_head_at: Final = CHECKED_ENTRY_HEADER.unpack_from
_SEND_START: Final = 0x080632
_SEND_START_LESS_SIZE: Final = (_SEND_START << 8) - 4
_SHIFTS: Final = tuple(range(7, 63, 7))


class FrameDecoder:
    """Decodes the frames of one connection. Not usable after a `ProtocolError`."""

    __slots__ = ("_buffer", "_total_bytes_max")

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX_DEFAULT,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
    ) -> None:
        self._total_bytes_max = frame_bytes_max - 4
        self._buffer = ReceiveBuffer(frame_bytes_max, buffer_bytes)

    @property
    def held_bytes(self) -> int:
        """Memory held for an incomplete frame; 0 for an idle connection."""
        return self._buffer.held_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of an incomplete frame."""
        return self._buffer.end - self._buffer.start

    def resize(self, frame_bytes_max: int, buffer_bytes: int = BUFFER_BYTES_DEFAULT) -> None:
        """Changes the bounds of frames and of the receive buffer, from the next read on.

        Raises ValueError for lower bounds: a frame may have begun under the present ones.
        """
        self._buffer.resize(frame_bytes_max, buffer_bytes)
        self._total_bytes_max = frame_bytes_max - 4

    def get_buffer(self) -> memoryview:
        """Returns the memory for the next bytes; valid until `received` is called."""
        return self._buffer.writable()

    def received(self, byte_count: int) -> list[Event]:
        """Returns the events of the frames that `byte_count` more bytes completed."""
        buffer = self._buffer
        buffer.end += byte_count
        events: list[Event] = []
        try:
            self._decode(events)
        except ProtocolError as error:
            error.events = events
            raise
        finally:
            for event in events:
                if type(event) is SendRun:
                    event.size_bytes = sum(map(len, event.entries))
        buffer.settle(byte_count)
        return events

    def feed(self, received: bytes) -> list[Event]:
        """Decodes any number of bytes, as if the transport had read them."""
        events: list[Event] = []
        at = 0
        while at < len(received):
            free = self._buffer.writable()
            count = min(len(free), len(received) - at)
            free[:count] = received[at : at + count]
            at += count
            try:
                events += self.received(count)
            except ProtocolError as error:
                error.events = events + error.events
                raise
        return events

    def _decode(self, events: list[Event]) -> None:
        buffer = self._buffer
        data, end = buffer.data, buffer.end
        total_bytes_max = self._total_bytes_max
        unchecked: dict[int, SendRun] = {}
        while end - buffer.start >= 8:
            position = buffer.start
            total, size, start, _, _ = _head_at(data, position)
            if not 6 <= size + 4 <= total <= total_bytes_max:
                raise _size_error(total, size, total_bytes_max)
            frame_end = position + 4 + total
            if frame_end > end:
                break
            if start >> 8 == _SEND_START:
                self._take_sends(events)
                if buffer.start > position:
                    unchecked.clear()
                    continue
            self._command(position, events, unchecked)
            buffer.start = frame_end

    def _take_sends(self, events: list[Event]) -> None:  # noqa: C901  # calls would dominate the cost
        """Decodes plain SENDs up to the first frame that is incomplete or not a plain SEND."""
        buffer, total_bytes_max = self._buffer, self._total_bytes_max
        data, view, position, end = buffer.data, buffer.view, buffer.start, buffer.end
        head_at, entry_head_at, checksum, find = _head_at, _entry_head_at, crc32c, bytes.find
        run_producer_id = -1
        runs: dict[int, SendRun] = {}
        while end - position >= 8:
            total, size, start, tag, producer_id = head_at(data, position)
            frame_end = position + 4 + total
            if (
                start - size != _SEND_START_LESS_SIZE
                or tag != 0x08
                or frame_end > end
                or not size + 4 <= total <= total_bytes_max
                or size > COMMAND_BYTES_MAX
            ):
                break
            command_end = position + 8 + size
            at = position + (14 if producer_id < 0x80 else 12)
            sequence_id, highest_sequence_id, message_count = -1, 0, 1
            while at < command_end:
                tag = data[at]
                value = data[at + 1]
                at += 2
                if value > 0x7F:
                    value &= 0x7F
                    for shift in _SHIFTS:
                        byte = data[at]
                        at += 1
                        if byte < 0x80:
                            value |= byte << shift
                            break
                        value |= (byte & 0x7F) << shift
                    else:
                        tag = 0
                if tag == 0x10:
                    sequence_id = value
                elif tag == 0x30:
                    highest_sequence_id = value
                elif tag == 0x18 and 0 < value <= MESSAGE_COUNT_MAX:
                    message_count = value
                elif tag == 0x08:
                    producer_id = value
                elif tag != 0x38:
                    sequence_id = -1
                    break
            if at != command_end or sequence_id < 0:
                break
            entry = view[command_end:frame_end].tobytes()
            magic, expected, metadata_size = entry_head_at(data, command_end)
            # `may_be_delayed`, for entries with a checksum.
            if find(entry, DELIVER_AT_TAG, 10, 10 + metadata_size) > 0 or magic != CHECKSUM_MAGIC:
                break
            position = frame_end
            sound = magic == CHECKSUM_MAGIC and 0 < metadata_size <= total - size - 14
            if not (sound and checksum(entry[6:]) == expected) and (fault := entry_fault(entry)):
                events.append(BadSend(producer_id, sequence_id, *fault))
                runs.pop(producer_id, None)
                run_producer_id = -1
                continue
            if producer_id != run_producer_id:
                run_producer_id = producer_id
                newest = runs.get(producer_id)
                run = runs[producer_id] = newest or _run_of(producer_id, events)
            run.sequence_ids.append(sequence_id)
            run.highest_sequence_ids.append(max(highest_sequence_id, sequence_id))
            run.message_counts.append(message_count)
            run.entries.append(entry)
        buffer.start = position

    def _command(self, frame_at: int, events: list[Event], unchecked: dict[int, SendRun]) -> None:
        """Decodes one complete frame with consistent sizes, of any command.

        `unchecked` has the newest run of each producer among the SENDs with unread metadata that
        came just before.
        """
        data, view = self._buffer.data, self._buffer.view
        total, size = FRAME_HEADER.unpack_from(data, frame_at)
        command_end = frame_at + 8 + size
        frame_end = frame_at + 4 + total
        command = view[frame_at + 8 : command_end].tobytes()
        if command[:2] == _ACK_START and (ack := scan_ack(command)):
            unchecked.clear()
            events.append(ack)
            return
        if command[:2] == _FLOW_START and (flow := scan_flow(command)):
            unchecked.clear()
            events.append(flow)
            return
        number, message = parse_command(command)
        payload = view[command_end:frame_end].tobytes() if frame_end > command_end else None
        if number == _SEND:
            _take_send(cast("CommandSend", message), payload or b"", events, unchecked)
            return
        unchecked.clear()
        if number == _ACK:
            events.append(plain_ack(cast("CommandAck", message)) or Command(number, message))
        elif number == _FLOW:
            flow_command = cast("CommandFlow", message)
            events.append(Flow(flow_command.consumer_id, flow_command.messagePermits))
        else:
            events.append(Command(number, message, payload))


def _run_of(producer_id: int, events: list[Event]) -> SendRun:
    """Returns the last event if it is a run of that producer, else appends a new run."""
    last = events[-1] if events else None
    if isinstance(last, SendRun) and last.producer_id == producer_id:
        return last
    run = SendRun(producer_id, [], [], [], [])
    events.append(run)
    return run


def _take_send(
    command: CommandSend, entry: bytes, events: list[Event], unchecked: dict[int, SendRun]
) -> None:
    """Appends the event of a SEND that protobuf has parsed, or extends the producer's last one."""
    fault = entry_fault(entry)
    if fault is None:
        txn = txn_send(command)
        plain = txn is None and plain_send(command) is not None
        if txn is not None or (plain and may_be_delayed(entry)):
            run = unchecked.get(command.producer_id)
            if run is None or run.txn != txn:
                run = SendRun(command.producer_id, [], [], [], [], 0, txn)
                unchecked[command.producer_id] = run
                events.append(UncheckedSends(run))
            _extend(run, command, entry)
            return
    unchecked.clear()
    if fault is not None:
        events.append(BadSend(command.producer_id, command.sequence_id, *fault))
    elif plain:
        _extend(_run_of(command.producer_id, events), command, entry)
    else:
        events.append(Send(command, entry))


def _extend(run: SendRun, command: CommandSend, entry: bytes) -> None:
    run.sequence_ids.append(command.sequence_id)
    run.highest_sequence_ids.append(max(command.highest_sequence_id, command.sequence_id))
    run.message_counts.append(command.num_messages)
    run.entries.append(entry)


def _size_error(total: int, size: int, total_bytes_max: int) -> ProtocolError:
    if total > total_bytes_max:
        return ProtocolError(f"A frame of {total + 4} bytes exceeds {total_bytes_max + 4}")
    return ProtocolError(f"A command of {size} bytes does not fit its frame of {total + 4}")
