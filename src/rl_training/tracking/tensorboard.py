"""TensorBoard event files, written without the library."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EventFile"]

BUCKETS = 30  # of a histogram
LARGEST = 3.4028234e38  # that an event can hold: a float of 32 bits


class EventFile:
    """TensorBoard's scalars, histograms and texts in the library's format (TFRecords of protobuf events); importing it
    would take a second."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}", "wb")  # noqa: SIM115
        self._record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        numbers = ((name, value) for name, value in values.items() if isinstance(value, int | float))
        scalars = [(name, float(value)) for name, value in numbers if abs(value) <= LARGEST]  # NaN is not
        self._summary(step, *(_bytes(1, name.encode()) + b"\x15" + struct.pack("<f", x) for name, x in scalars))

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        import numpy as np

        counts, edges = np.histogram(values, bins=BUCKETS)
        numbers = (values.min(), values.max(), len(values), values.sum(), np.square(values).sum())
        proto = b"".join(_double(number, float(value)) for number, value in enumerate(numbers, start=1))
        proto += b"".join(
            _bytes(number, struct.pack(f"<{BUCKETS}d", *row)) for number, row in ((6, edges[1:]), (7, counts))
        )
        self._summary(step, _bytes(1, name.encode()) + _bytes(5, proto))

    def text(self, step: int, name: str, text: str) -> None:
        tensor = b"\x08\x07" + _bytes(2, _bytes(2, b"\x08\x01")) + _bytes(8, text.encode())  # one string
        plugin = _bytes(9, _bytes(1, _bytes(1, b"text")))
        self._summary(step, _bytes(1, f"{name}/text_summary".encode()) + plugin + _bytes(8, tensor))

    def _summary(self, step: int, *values: bytes) -> None:
        """Write one event with these values."""
        summary = b"".join(_bytes(1, value) for value in values)
        self._record(_double(1, time.time()) + b"\x10" + _varint(step) + _bytes(5, summary))
        self._file.flush()

    def _record(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))

    def close(self) -> None:
        self._file.close()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
