"""Label files of SBD (Semantic Boundaries Dataset): MATLAB 5 files with `GTcls.Segmentation`, and nothing else of them.

A file is a header of 128 bytes and data elements. An element is a tag (type and length, 8 bytes, or 4 bytes if the data
fit into the other 4) and its data, padded to 8 bytes. A compressed element contains another one. An array is an element
of elements: flags with its class, dimensions, name, and its values, or the arrays of its fields.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamburger.errors import DataError
from hamburger.training.image_files import Bytes
from hamburger.training.safe_files import MAX_FILE_BYTES, check_pixels, describe, read_bytes

HEADER = 128
ORDERS = {b"IM": "<", b"MI": ">"}  # how the machine that wrote the file stores the 16 bits 'MI'
INT32, ARRAY, COMPRESSED = 5, 14, 15  # types of elements
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", INT32: "i4", 6: "u4", 7: "f4", 9: "f8"}
STRUCT = 2  # a class of arrays
VARIABLE, FIELD, LARGEST_CLASS = "GTcls", "Segmentation", 20


def read_sbd_label(path: Path) -> Bytes:
    """Return the classes (h w) of an SBD file; 255 is unlabelled."""
    content = read_bytes(path, MAX_FILE_BYTES)
    try:
        label = _find_label(content)
    except Exception as broken:  # a damaged file leads anywhere
        raise DataError(f"{path}: not an SBD label, or damaged ({describe(broken)}); copy it again") from None
    check_pixels(path, *label.shape)
    if not (((label >= 0) & (label <= LARGEST_CLASS)) | (label == 255)).all():
        raise DataError(f"{path}: label with values {label.min()} ... {label.max()}; SBD has 0 ... {LARGEST_CLASS}")
    return label.astype(np.uint8)


class Element(NamedTuple):
    type: int
    data: memoryview


def _split_elements(data: memoryview, order: str, *, inflate: bool = False) -> Iterator[Element]:
    """Yield the elements of a block; with `inflate`, compressed ones as what they contain."""
    place = 0
    while place < len(data):
        tag, length = np.frombuffer(data[place : place + 8], f"{order}u4").tolist()
        start, type = place + 8, tag
        if tag >> 16:  # a short element: length and type share the first four bytes
            start, type, length = place + 4, tag & 0xFFFF, tag >> 16
        block = data[start : start + length]
        if len(block) != length or (start == place + 4 and length > 4):
            raise ValueError("an element reaches beyond its block")
        place = place + 8 if start == place + 4 else start + length + (-length % 8 if type != COMPRESSED else 0)
        if type == COMPRESSED and inflate:
            inflater = zlib.decompressobj()
            block = memoryview(inflater.decompress(block, MAX_FILE_BYTES))
            if inflater.unconsumed_tail:
                raise ValueError(f"an element is larger than {MAX_FILE_BYTES:,} bytes")
            yield from _split_elements(block, order)
        else:
            yield Element(type, block)


def _find_label(content: bytes) -> npt.NDArray[Any]:
    order = ORDERS[content[HEADER - 2 : HEADER]]
    for variable in _split_elements(memoryview(content)[HEADER:], order, inflate=True):
        kind, _, name, parts = _open_array(variable, order)
        if kind == STRUCT and name == VARIABLE:
            (_, size), (_, names) = islice(parts, 2)
            width = max(1, int(np.frombuffer(size, f"{order}i4")[0]))
            fields = [bytes(names[i : i + width]).split(b"\0")[0].decode() for i in range(0, len(names), width)]
            label = dict(zip(fields, parts, strict=False))[FIELD]
            _, (h, w), _, values = _open_array(label, order)
            ((type, data),) = islice(values, 1)
            return np.frombuffer(data, f"{order}{NUMBERS[type]}").reshape(w, h).T
    raise ValueError(f"it has no {VARIABLE}.{FIELD}")


def _open_array(array: Element, order: str) -> tuple[int, list[int], str, Iterator[Element]]:
    """Return class, dimensions and name of an array, and the elements that follow."""
    if array.type != ARRAY:
        raise ValueError(f"expected an array, found an element of type {array.type}")
    parts = _split_elements(array.data, order)
    flags, dimensions, name = (part.data for part in islice(parts, 3))
    shape = np.frombuffer(dimensions, f"{order}i4").tolist()
    if min(shape, default=0) < 0 or len(flags) != 8:
        raise ValueError("the header of an array is damaged")
    return int(np.frombuffer(flags, f"{order}u4")[0]) & 0xFF, shape, bytes(name).decode(), parts
