"""QuantTensor: a weight as the file stores it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.formats.quants import QuantType


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """A weight matrix or vector in its stored form.

    `shape` is row-major (rows, columns) or (elements,); `data` is a read-only uint8 view of exactly
    the stored bytes, rows one after another, each a whole number of quant blocks. `is_mapped`: they are
    part of a mapped file (and nothing else), whose pages can be given back once they are read.
    """

    name: str
    quant_type: QuantType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    is_mapped: bool = False
