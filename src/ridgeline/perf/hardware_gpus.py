"""GPUs and systems on a chip, by their vendors' figures: dense peaks, without sparsity or boost tricks."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.perf.hardware_entry import HardwareEntry, Kind

_GB, _GB_S, _TFLOPS = 10**9, 1e9, 1e12
_SPARSE = "; the sheet's figure with sparsity, halved"

_A100 = "NVIDIA A100 Tensor Core GPU data sheet (June 2021)"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet (2023)"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet (2024)"
_ADA = "NVIDIA Ada GPU Architecture white paper v2.1 (2023), appendix A"
_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture white paper v1.1 (2025), appendix A"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet (2023)"
_L40S = "NVIDIA L40S data sheet (2023)"
_MI300X = "AMD Instinct MI300X data sheet (December 2023)"
_MI325X = "AMD Instinct MI325X data sheet (October 2024)"


def _gpu(
    name: str, title: str, source: str, *, memory_gb: int, gb_per_s: float, tflops: Mapping[str, float]
) -> HardwareEntry:
    """One board; a source that ends in `_SPARSE` says so of its peaks only."""
    sheet = source.removesuffix(_SPARSE)
    return HardwareEntry(
        name=name,
        title=title,
        kind=Kind.GPU,
        memory_bytes=memory_gb * _GB,
        memory_bytes_per_s=gb_per_s * _GB_S,
        peaks_flops_per_s={each: value * _TFLOPS for each, value in tflops.items()},
        sources={"memory": sheet, "bandwidth": sheet, **dict.fromkeys(tflops, source), "fp32": sheet},
    )


def _apple(
    name: str, *, memory_gb: int, gb_per_s: float, released: str, tflops: float | None = None
) -> HardwareEntry:
    """Apple publishes float32 figures of some GPUs; where it does not, only memory is known."""
    source = f"Apple newsroom, {name} announcement ({released})"
    return HardwareEntry(
        name=name,
        title=f"Apple {name.replace('-', ' ').title()}",
        kind=Kind.SOC,
        memory_bytes=memory_gb * _GB,
        memory_bytes_per_s=gb_per_s * _GB_S,
        peaks_flops_per_s={} if tflops is None else {"fp32": tflops * _TFLOPS},
        sources={"memory": source, "bandwidth": source, **({} if tflops is None else {"fp32": source})},
    )


_A100_PEAKS = {"fp32": 19.5, "fp16": 312.0, "bf16": 312.0, "int8": 624.0}
_H100_PEAKS = {"fp32": 67.0, "fp16": 989.5, "bf16": 989.5, "fp8": 1979.0, "int8": 1979.0}
_MI300_PEAKS = {"fp32": 163.4, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9}

GPUS: tuple[HardwareEntry, ...] = (
    _gpu("a100-40gb", "NVIDIA A100 40 GB",
         "NVIDIA A100 Tensor Core GPU Architecture white paper v1.0 (2020), table 1",
         memory_gb=40, gb_per_s=1555, tflops=_A100_PEAKS),
    _gpu("a100-80gb-sxm", "NVIDIA A100 80 GB SXM", _A100, memory_gb=80, gb_per_s=2039, tflops=_A100_PEAKS),
    _gpu("a100-80gb-pcie", "NVIDIA A100 80 GB PCIe", _A100, memory_gb=80, gb_per_s=1935, tflops=_A100_PEAKS),
    _gpu("h100-sxm", "NVIDIA H100 SXM", _H100 + _SPARSE, memory_gb=80, gb_per_s=3350, tflops=_H100_PEAKS),
    _gpu("h100-pcie", "NVIDIA H100 PCIe",
         "NVIDIA H100 Tensor Core GPU data sheet (2022)" + _SPARSE, memory_gb=80, gb_per_s=2000,
         tflops={"fp32": 51.0, "fp16": 756.5, "bf16": 756.5, "fp8": 1513.0, "int8": 1513.0}),
    _gpu("h200-sxm", "NVIDIA H200 SXM", _H200 + _SPARSE, memory_gb=141, gb_per_s=4800, tflops=_H100_PEAKS),
    _gpu("l4", "NVIDIA L4", _L4 + _SPARSE, memory_gb=24, gb_per_s=300,
         tflops={"fp32": 30.3, "fp16": 121.0, "bf16": 121.0, "fp8": 242.5, "int8": 242.5}),
    _gpu("l40s", "NVIDIA L40S", _L40S, memory_gb=48, gb_per_s=864,
         tflops={"fp32": 91.6, "fp16": 362.05, "bf16": 362.05, "fp8": 733.0, "int8": 733.0}),
    _gpu("rtx-4090", "NVIDIA GeForce RTX 4090", f"{_ADA}: sums in fp32", memory_gb=24, gb_per_s=1008,
         tflops={"fp32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3, "int8": 660.6}),
    _gpu("rtx-5090", "NVIDIA GeForce RTX 5090", f"{_BLACKWELL}: sums in fp32", memory_gb=32, gb_per_s=1792,
         tflops={"fp32": 104.8, "fp16": 209.5, "bf16": 209.5, "fp8": 419.0, "int8": 838.0}),
    _gpu("mi300x", "AMD Instinct MI300X", _MI300X, memory_gb=192, gb_per_s=5300, tflops=_MI300_PEAKS),
    _gpu("mi325x", "AMD Instinct MI325X", _MI325X, memory_gb=256, gb_per_s=6000, tflops=_MI300_PEAKS),
)  # fmt: skip

SOCS: tuple[HardwareEntry, ...] = (
    _apple("m1", memory_gb=16, gb_per_s=68.3, tflops=2.6,
           released="November 2020; bandwidth: 128 bits of LPDDR4X-4266"),
    _apple("m1-pro", memory_gb=32, gb_per_s=200, released="October 2021", tflops=5.2),
    _apple("m1-max", memory_gb=64, gb_per_s=400, released="October 2021", tflops=10.4),
    _apple("m1-ultra", memory_gb=128, gb_per_s=800, released="March 2022", tflops=21.0),
    _apple("m2", memory_gb=24, gb_per_s=100, released="June 2022", tflops=3.6),
    _apple("m2-pro", memory_gb=32, gb_per_s=200, released="January 2023"),
    _apple("m2-max", memory_gb=96, gb_per_s=400, released="January 2023"),
    _apple("m2-ultra", memory_gb=192, gb_per_s=800, released="June 2023"),
    _apple("m3", memory_gb=24, gb_per_s=100, released="October 2023"),
    _apple("m3-pro", memory_gb=36, gb_per_s=150, released="October 2023"),
    _apple("m3-max", memory_gb=128, gb_per_s=400, released="October 2023"),
    _apple("m3-ultra", memory_gb=512, gb_per_s=819, released="March 2025"),
    _apple("m4", memory_gb=32, gb_per_s=120, released="May and October 2024"),
    _apple("m4-pro", memory_gb=64, gb_per_s=273, released="October 2024"),
    _apple("m4-max", memory_gb=128, gb_per_s=546, released="October 2024"),
)  # fmt: skip
