"""HardwareEntry: a machine as its vendor describes it, every figure with where it stands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.perf.hardware import HardwareProfile, Source


class Kind(StrEnum):
    """What computes: it decides which number format a product of quantised weights is carried out in."""

    GPU = "GPU"
    CPU = "CPU"
    SOC = "SoC"
    """CPU and GPU on one memory; the peaks are the GPU's."""


UNKNOWN_PEAK = math.inf
"""A peak that nobody published limits nothing."""

_PRODUCTS: Mapping[Kind, Mapping[str, tuple[str, ...]]] = {
    Kind.GPU: {"F32": ("fp32",), "F16": ("fp16",), "BF16": ("bf16", "fp16"), "Q8_0": ("int8", "fp16")},
    Kind.SOC: {"F32": ("fp32",), "F16": ("fp16", "fp32"), "BF16": ("fp16", "fp32")},
    Kind.CPU: {"F32": ("fp32",), "F16": ("fp16", "fp32"), "BF16": ("bf16", "fp32")},
}
_QUANTIZED_PRODUCTS: Mapping[Kind, tuple[str, ...]] = {
    Kind.GPU: ("fp16",),
    Kind.SOC: ("fp16", "fp32"),
    Kind.CPU: ("int8",),
}
_ATTENTION: Mapping[Kind, tuple[str, ...]] = {
    Kind.GPU: ("fp16",),
    Kind.SOC: ("fp16", "fp32"),
    Kind.CPU: ("bf16", "fp32"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareEntry:
    """One row of the table.

    `memory_bytes` on the board, or the most the vendor supports; `memory_bytes_per_s` of all channels;
    `peaks_flops_per_s` by number format, dense (no sparsity), a multiply-add two. `sources` maps `memory`,
    `bandwidth` and each number format to the document that has the figure, or to how it follows from one.
    """

    name: str
    title: str
    kind: Kind
    memory_bytes: int
    memory_bytes_per_s: float
    peaks_flops_per_s: Mapping[str, float]
    sources: Mapping[str, str]

    def product_format(self, quant_type: str) -> str | None:
        """The number format that products with weights of this type are counted in; None: not published.

        Quantised weights are unpacked to 16 bits on a GPU (Q8_0 may stay int8) and to int8 on a CPU.
        """
        wanted = _PRODUCTS[self.kind].get(quant_type, _QUANTIZED_PRODUCTS[self.kind])
        return next((name for name in wanted if name in self.peaks_flops_per_s), None)

    def profile(self) -> HardwareProfile:
        """The ceilings for the same analysis as of a measured machine; caches are not described."""
        rates = {}
        for quant_type in QUANT_TYPES:
            name = self.product_format(quant_type)
            rates[quant_type] = ((1, self.peaks_flops_per_s[name] if name else UNKNOWN_PEAK),)
        attention = next((n for n in _ATTENTION[self.kind] if n in self.peaks_flops_per_s), None)
        return HardwareProfile(
            name=self.title,
            source=Source.DATA_SHEET,
            num_threads=1,
            dram_bytes_per_s=self.memory_bytes_per_s,
            matmul_flops_per_s=rates,
            attention_flops_per_s=self.peaks_flops_per_s[attention] if attention else UNKNOWN_PEAK,
            memory_bytes=self.memory_bytes,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        """Figures of one source together."""
        for source in dict.fromkeys(self.sources.values()):
            yield f"{', '.join(name for name, of in self.sources.items() if of == source)}: {source}"
