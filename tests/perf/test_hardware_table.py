"""Machines by name: lookup, sources, and figures worked out by hand from their data sheets."""

from __future__ import annotations

import math

import pytest

from ridgeline.errors import ConfigError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.perf.hardware import Source
from ridgeline.perf.hardware_entry import HardwareEntry, Kind
from ridgeline.perf.hardware_table import ALIASES, HARDWARE, find_hardware
from ridgeline.perf.roofline import peak_flops_per_s, ridge_intensity


@pytest.mark.parametrize("entry", HARDWARE.values(), ids=lambda entry: entry.name)
def test_every_figure_has_a_source_and_a_positive_value(entry: HardwareEntry) -> None:
    assert set(entry.sources) == {"memory", "bandwidth", *entry.peaks_flops_per_s}
    assert all(len(source) > 8 for source in entry.sources.values())
    assert entry.memory_bytes >= 10**9
    assert 5e10 <= entry.memory_bytes_per_s <= 1e13
    assert all(peak >= 5e11 for peak in entry.peaks_flops_per_s.values())
    profile = entry.profile()
    assert profile.source is Source.DATA_SHEET == "data sheet"
    assert set(profile.matmul_flops_per_s) == set(QUANT_TYPES)
    noted = [name for note in profile.notes for name in note.partition(": ")[0].split(", ")]
    assert sorted(noted) == sorted(entry.sources)


@pytest.mark.parametrize(
    ("name", "gb", "gb_per_s", "peaks"),
    [
        # As the sheets print them: (TFLOP/s, what of that is dense).
        ("a100-40gb", 40, 1555, {"fp32": (19.5, 1), "fp16": (624, 0.5), "int8": (1248, 0.5)}),
        ("a100-80gb-sxm", 80, 2039, {"fp32": (19.5, 1), "bf16": (624, 0.5), "int8": (1248, 0.5)}),
        ("a100-80gb-pcie", 80, 1935, {"fp16": (624, 0.5)}),
        (
            "h100-sxm",
            80,
            3350,
            {"fp32": (67, 1), "fp16": (1979, 0.5), "fp8": (3958, 0.5), "int8": (3958, 0.5)},
        ),
        ("h100-pcie", 80, 2000, {"fp32": (51, 1), "bf16": (1513, 0.5), "fp8": (3026, 0.5)}),
        ("h200-sxm", 141, 4800, {"fp32": (67, 1), "bf16": (1979, 0.5), "fp8": (3958, 0.5)}),
        ("l4", 24, 300, {"fp32": (30.3, 1), "fp16": (242, 0.5), "fp8": (485, 0.5), "int8": (485, 0.5)}),
        ("l40s", 48, 864, {"fp32": (91.6, 1), "fp16": (362.05, 1), "fp8": (733, 1)}),
        # Sums in fp32: half the speed of those in fp16; 16,384 cores × 2.52 GHz × 2 FLOPs.
        ("rtx-4090", 24, 1008, {"fp32": (2 * 16384 * 2.52e-3, 1), "fp16": (330.3, 0.5), "int8": (660.6, 1)}),
        ("mi300x", 192, 5300, {"fp32": (163.4, 1), "fp16": (2614.9, 0.5), "fp8": (5229.8, 0.5)}),
        ("m1", 16, 68.25, {"fp32": (2.6, 1)}),
        ("m1-ultra", 128, 800, {"fp32": (21, 1)}),
        ("m3-max", 128, 400, {}),
        ("m4-max", 128, 546, {}),
        ("xeon-8480+", 4000, 307.2, {"bf16": (56 * 2.0 * 1.024, 1), "int8": (56 * 2.0 * 2.048, 1)}),
        ("epyc-9654", 6000, 460.8, {"fp32": (96 * 2.4 * 0.032, 1)}),
        ("epyc-9755", 6000, 576, {"fp32": (128 * 2.7 * 0.064, 1)}),
        ("graviton4", 1536, 537.6, {"fp32": (96 * 2.8 * 0.032, 1)}),
    ],
)
def test_figures_are_those_of_the_sheets(
    name: str, gb: float, gb_per_s: float, peaks: dict[str, tuple[float, float]]
) -> None:
    entry = find_hardware(name)
    assert entry.memory_bytes == pytest.approx(gb * 1e9)
    assert entry.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=2e-3)
    for number_format, (tflops, dense) in peaks.items():
        assert entry.peaks_flops_per_s[number_format] == pytest.approx(tflops * dense * 1e12, rel=2e-3)
        assert entry.sources[number_format]


def test_names_and_aliases_lead_to_one_entry_each() -> None:
    assert all(find_hardware(name).name == name for name in HARDWARE)
    assert all(find_hardware(alias).name == name for alias, name in ALIASES.items())
    assert not set(ALIASES) & set(HARDWARE)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("a100_40GB", "a100-40gb"),
        ("GeForce RTX-4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Apple M3 Max", "m3-max"),
        ("Intel Xeon Platinum 8480+", "xeon-8480+"),
        ("EPYC 9654", "epyc-9654"),
    ],
)
def test_lookup_forgives_case_dashes_and_makers(asked: str, name: str) -> None:
    assert find_hardware(asked).name == name


@pytest.mark.parametrize(
    ("asked", "near"), [("h10", "h100-sxm"), ("epyc-9655", "epyc-9654"), ("m3mx", "m3-max")]
)
def test_an_unknown_name_is_refused_with_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(ConfigError, match=near) as refused:
        find_hardware(asked)
    assert refused.value.field == "hardware"
    assert refused.value.value == asked
    assert "--list-hardware" in refused.value.remedy


def test_nonsense_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError) as refused:
        find_hardware("≠≠≠")
    assert "nearest" not in refused.value.remedy


@pytest.mark.parametrize(
    ("name", "quant_type", "intensity"),
    [
        # H100 data sheet: 1,979 TFLOPS with sparsity, half of it dense, over 3.35 TB/s.
        ("h100", "BF16", 1979 / 2 / 3.35),
        ("h100", "Q8_0", 3958 / 2 / 3.35),
        # A100 data sheet: 312 TFLOPS over 2,039 GB/s; the 40 GB one has 1,555 GB/s.
        ("a100-80gb", "F16", 312 / 2.039),
        ("a100-40gb", "F16", 312 / 1.555),
        ("mi300x", "BF16", 1307.4 / 5.3),
        # 56 cores × 2.0 GHz × 2,048 int8 operations, over 8 channels of DDR5-4800.
        ("xeon-8480+", "Q4_0", 56 * 2.0 * 2048 / (8 * 4.8 * 8)),
        ("ryzen-9950x", "F32", 16 * 4.3 * 64 / (2 * 5.6 * 8)),
    ],
)
def test_ridge_intensities_by_hand(name: str, quant_type: str, intensity: float) -> None:
    assert ridge_intensity(find_hardware(name).profile(), quant_type) == pytest.approx(intensity, rel=1e-9)


def test_the_published_ridges() -> None:
    """≈ 295 FLOPs a byte of an H100 and 153 of an A100 in 16 bits are quoted in many places."""
    assert round(ridge_intensity(find_hardware("h100").profile(), "F16")) == 295
    assert round(ridge_intensity(find_hardware("a100").profile(), "F16")) == 153


def test_what_nobody_published_limits_nothing() -> None:
    entry = find_hardware("m4-max")
    assert entry.kind is Kind.SOC
    assert entry.product_format("F16") is None
    profile = entry.profile()
    assert peak_flops_per_s(profile, "F16") is None
    assert ridge_intensity(profile, "F16") is None
    assert math.isinf(profile.attention_flops_per_s)
    milan = find_hardware("epyc-7763")
    assert milan.product_format("Q4_0") is None
    assert milan.product_format("F16") == "fp32"
