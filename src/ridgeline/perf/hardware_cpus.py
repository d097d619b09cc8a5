"""Server and desktop CPUs, one socket: peaks at the base clock, memory with all channels filled.

A peak is cores × base clock × operations a cycle and core; above the base clock a CPU goes beyond it, so
these are ceilings of sustained work, not of a short burst. Bandwidth is channels × transfers/s × 8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.perf.hardware_entry import HardwareEntry, Kind

_TB = 10**12
_CHANNEL_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """Operations a cycle by number format, and who says so."""

    ops: Mapping[str, int]
    source: str


_SKYLAKE_AVX512 = "two 512-bit multiply-add units (Intel 64 and IA-32 Optimization Reference Manual)"
_ICE_LAKE = _Core(ops={"fp32": 64, "int8": 256}, source=f"{_SKYLAKE_AVX512}; int8 by VNNI")
_AMX = _Core(
    ops={"fp32": 64, "bf16": 1024, "int8": 2048},
    source=f"{_SKYLAKE_AVX512}; bf16 and int8 by AMX (Intel, Accelerate AI Workloads with Intel AMX, 2022)",
)
_ZEN3 = _Core(
    ops={"fp32": 32}, source="two 256-bit multiply-add units (AMD, Software Optimization Guide 19h, 2020)"
)
_ZEN4 = _Core(
    ops={"fp32": 32, "bf16": 64, "int8": 128},
    source="512-bit operations on two 256-bit units (AMD, Software Optimization Guide for Zen 4, 2023)",
)
_ZEN5 = _Core(
    ops={"fp32": 64, "bf16": 128, "int8": 256},
    source="two 512-bit multiply-add units (AMD, Software Optimization Guide for Zen 5, 2024)",
)
_NEOVERSE_V1 = _Core(
    ops={"fp32": 32, "int8": 256},
    source="two 256-bit SVE units (Arm Neoverse V1 announcement, 2021; WikiChip Fuse, Neoverse V1)",
)
_NEOVERSE_V2 = _Core(ops={"fp32": 32}, source="four 128-bit SVE2 units (Arm Neoverse V2, Hot Chips 2023)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Socket:
    """A product page's figures: cores, base clock, memory channels at mega-transfers/s, most memory."""

    cores: int
    ghz: float
    channels: int
    mt_per_s: int
    memory_tb: float
    page: str


def _cpu(name: str, title: str, core: _Core, socket: _Socket) -> HardwareEntry:
    bandwidth = socket.channels * socket.mt_per_s * 1e6 * _CHANNEL_BYTES
    page = f"{socket.page}, {title.partition(' (')[0]}"
    clock = f"{socket.cores} cores × {socket.ghz:g} GHz"
    peaks = {each: socket.cores * socket.ghz * 1e9 * ops for each, ops in core.ops.items()}
    return HardwareEntry(
        name=name,
        title=title,
        kind=Kind.CPU,
        memory_bytes=round(socket.memory_tb * _TB),
        memory_bytes_per_s=bandwidth,
        peaks_flops_per_s=peaks,
        sources={
            "memory": f"the most supported: {page}",
            "bandwidth": f"{socket.channels} channels × {socket.mt_per_s} MT/s × 8 B: {page}",
            **{each: f"{clock} × {ops} a cycle: {page}; {core.source}" for each, ops in core.ops.items()},
        },
    )


def _xeon(cores: int, ghz: float, mt_per_s: int, memory_tb: float = 4.0, channels: int = 8) -> _Socket:
    return _Socket(cores=cores, ghz=ghz, channels=channels, mt_per_s=mt_per_s, memory_tb=memory_tb,
                   page="Intel ARK")  # fmt: skip


def _amd(cores: int, ghz: float, mt_per_s: int, memory_tb: float, channels: int) -> _Socket:
    return _Socket(cores=cores, ghz=ghz, channels=channels, mt_per_s=mt_per_s, memory_tb=memory_tb,
                   page="AMD product specifications")  # fmt: skip


def _graviton(cores: int, ghz: float, mt_per_s: int, memory_tb: float, channels: int) -> _Socket:
    return _Socket(cores=cores, ghz=ghz, channels=channels, mt_per_s=mt_per_s, memory_tb=memory_tb,
                   page="AWS EC2 types (r7g, x8g); WikiChip and The Next Platform (2024)")  # fmt: skip


CPUS: tuple[HardwareEntry, ...] = (
    _cpu("xeon-8380", "Intel Xeon Platinum 8380 (Ice Lake)", _ICE_LAKE, _xeon(40, 2.3, 3200, 6.0)),
    _cpu("xeon-6430", "Intel Xeon Gold 6430 (Sapphire Rapids)", _AMX, _xeon(32, 2.1, 4400)),
    _cpu("xeon-8480+", "Intel Xeon Platinum 8480+ (Sapphire Rapids)", _AMX, _xeon(56, 2.0, 4800)),
    _cpu("xeon-8490h", "Intel Xeon Platinum 8490H (Sapphire Rapids)", _AMX, _xeon(60, 1.9, 4800)),
    _cpu("xeon-8580", "Intel Xeon Platinum 8580 (Emerald Rapids)", _AMX, _xeon(60, 2.0, 5600)),
    _cpu("xeon-8592+", "Intel Xeon Platinum 8592+ (Emerald Rapids)", _AMX, _xeon(64, 1.9, 5600)),
    _cpu("xeon-6980p", "Intel Xeon 6980P (Granite Rapids)", _AMX, _xeon(128, 2.0, 6400, 3.0, 12)),
    _cpu("epyc-7543", "AMD EPYC 7543 (Milan)", _ZEN3, _amd(32, 2.8, 3200, 4.0, 8)),
    _cpu("epyc-7763", "AMD EPYC 7763 (Milan)", _ZEN3, _amd(64, 2.45, 3200, 4.0, 8)),
    _cpu("epyc-9554", "AMD EPYC 9554 (Genoa)", _ZEN4, _amd(64, 3.1, 4800, 6.0, 12)),
    _cpu("epyc-9654", "AMD EPYC 9654 (Genoa)", _ZEN4, _amd(96, 2.4, 4800, 6.0, 12)),
    _cpu("epyc-9755", "AMD EPYC 9755 (Turin)", _ZEN5, _amd(128, 2.7, 6000, 6.0, 12)),
    _cpu("ryzen-7950x", "AMD Ryzen 9 7950X", _ZEN4, _amd(16, 4.5, 5200, 0.128, 2)),
    _cpu("ryzen-9950x", "AMD Ryzen 9 9950X", _ZEN5, _amd(16, 4.3, 5600, 0.192, 2)),
    _cpu(
        "core-i9-14900k",
        "Intel Core i9-14900K, its 8 performance cores",
        _Core(ops={"fp32": 32, "int8": 128}, source="two 256-bit multiply-add units, int8 by AVX-VNNI "
              "(Intel 64 and IA-32 Optimization Reference Manual)"),
        _xeon(8, 3.2, 5600, 0.192, 2),
    ),
    _cpu("graviton3", "AWS Graviton3", _NEOVERSE_V1, _graviton(64, 2.6, 4800, 0.512, 8)),
    _cpu("graviton4", "AWS Graviton4", _NEOVERSE_V2, _graviton(96, 2.8, 5600, 1.536, 12)),
)  # fmt: skip
