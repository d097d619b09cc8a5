"""Arrays that count: every elementwise operation its FLOPs, every read or write of a store its bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels import reference
from ridgeline.kernels.dequantize import dequantize
from ridgeline.kernels.tensor import QuantTensor
from ridgeline.perf.op_cost import OPS, OpCost


class Meter:
    """Counters of the op in progress."""

    def __init__(self) -> None:
        self._counts = {op: Counter() for op in OPS}
        self._op: str | None = None

    @contextmanager
    def op(self, name: str):
        outer, self._op = self._op, name
        yield
        self._op = outer

    def add(self, field: str, amount: int) -> None:
        assert self._op is not None, "work outside of any op"
        self._counts[self._op][field] += amount

    def costs(self) -> dict[str, OpCost]:
        return {
            op: OpCost(*(counts[field] for field in OpCost._fields)) for op, counts in self._counts.items()
        }


class Reals:
    """Real numbers in float64 under arithmetic that is counted: one FLOP an element of the result."""

    __array_priority__ = 1.0

    def __init__(self, meter: Meter, values: NDArray[np.float64]) -> None:
        self._meter = meter
        self.values = np.asarray(values, np.float64)

    def _made(self, values: NDArray[np.float64]) -> Reals:
        values = np.asarray(values)
        self._meter.add("flops", values.size)
        return Reals(self._meter, values)

    def __add__(self, other: Reals | float) -> Reals:
        return self._made(self.values + _plain(other))

    def __sub__(self, other: Reals | float) -> Reals:
        return self._made(self.values - _plain(other))

    def __mul__(self, other: Reals | float) -> Reals:
        return self._made(self.values * _plain(other))

    def __truediv__(self, other: Reals | float) -> Reals:
        return self._made(self.values / _plain(other))

    def __rtruediv__(self, other: float) -> Reals:
        return self._made(other / self.values)

    def __getitem__(self, index) -> Reals:
        return Reals(self._meter, self.values[index])

    def maximum(self, other: Reals) -> Reals:
        return self._made(np.maximum(self.values, other.values))

    def exp(self) -> Reals:
        return self._made(np.exp(self.values))

    def sqrt(self) -> Reals:
        return self._made(np.sqrt(self.values))

    def cos(self) -> Reals:
        return self._made(np.cos(self.values))

    def sin(self) -> Reals:
        return self._made(np.sin(self.values))

    def negated(self) -> Reals:
        """A flipped sign, which is no arithmetic."""
        return Reals(self._meter, -self.values)

    def total(self) -> Reals:
        """Sum over the last axis, one addition after the other."""
        sums = Reals(self._meter, np.zeros(self.values.shape[:-1]))
        for i in range(self.values.shape[-1]):
            sums = sums + self[..., i]
        return sums

    def largest(self) -> Reals:
        """Largest of the last axis, one comparison after the other."""
        best = Reals(self._meter, np.full(self.values.shape[:-1], -np.inf))
        for i in range(self.values.shape[-1]):
            best = best.maximum(self[..., i])
        return best


def joined(parts: Sequence[Reals]) -> Reals:
    """The parts one after another on the last axis."""
    return Reals(parts[0]._meter, np.concatenate([part.values for part in parts], axis=-1))


class Stored:
    """An array in memory, of any dtype: what goes in or comes out counts its bytes under `field`."""

    def __init__(self, meter: Meter, field: str, array: NDArray) -> None:
        self._meter = meter
        self._fields = ("kv_read_bytes", "kv_written_bytes") if field == "kv" else (field, field)
        self.array = array

    def read(self, index=slice(None)) -> Reals:
        taken = self.array[index]
        self._meter.add(self._fields[0], taken.nbytes)
        return Reals(self._meter, taken)

    def write(self, index, values: Reals) -> None:
        self.array[index] = values.values
        self._meter.add(self._fields[1], self.array[index].nbytes)


class Weights:
    """A matrix or vector in its stored form; a row is read by its own bytes."""

    def __init__(self, meter: Meter, tensor: QuantTensor) -> None:
        self._meter = meter
        self.quant_type = tensor.quant_type.name
        num_rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        self._rows = tensor.data.reshape(num_rows, -1)
        self._kind = tensor.quant_type

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Reals:
        data = self._rows[index]
        self._meter.add("weight_bytes", data.nbytes)
        num_elements = data.size // self._kind.type_size * self._kind.quant_block_size
        return Reals(self._meter, dequantize(self._kind, data, (num_elements,)))


class Inputs:
    """Rows on their way into products, in every form that the products' weights take."""

    def __init__(self, meter: Meter, rows: Sequence[Reals], quant_types: Sequence[str]) -> None:
        x = np.stack([row.values for row in rows]).astype(np.float32)
        self._forms: dict[str, tuple[NDArray, ...]] = {}
        for quant_type in quant_types:
            form = _form_of(quant_type)
            if form not in self._forms:
                self._forms[form] = _stored_as(form, x)
                meter.add("activation_bytes", sum(part.nbytes for part in self._forms[form]))
        self._meter = meter
        self._read: dict[str, Reals] = {}

    def of(self, quant_type: str) -> Reals:
        """[T, columns] as a product with such weights sees them; a form is read from memory once."""
        form = _form_of(quant_type)
        if form not in self._read:
            parts = self._forms[form]
            self._meter.add("activation_bytes", sum(part.nbytes for part in parts))
            self._read[form] = Reals(self._meter, _values_of(form, parts))
        return self._read[form]


def _form_of(quant_type: str) -> str:
    return {"F32": "float", "F16": "float", "BF16": "float", "Q8_0": "int16"}.get(quant_type, "int8")


def _stored_as(form: str, x: NDArray[np.float32]) -> tuple[NDArray, ...]:
    if form == "float":
        return (x,)
    quantize = reference.quantize_activations if form == "int8" else reference.quantize_activations_16
    return quantize(x)


def _values_of(form: str, parts: tuple[NDArray, ...]) -> NDArray[np.float64]:
    if form == "float":
        return parts[0].astype(np.float64)
    q, scales = parts[0].astype(np.float64), parts[1].astype(np.float64)
    return (q.reshape(len(q), -1, 32) * scales[..., None]).reshape(q.shape)


def _plain(other: Reals | float) -> NDArray[np.float64] | float:
    return other.values if isinstance(other, Reals) else other
