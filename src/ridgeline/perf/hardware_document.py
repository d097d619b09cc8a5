"""HardwareProfile as a JSON document, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ridgeline.perf.hardware import CacheLevel, HardwareProfile, Source
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_prices import AttentionPrices, OpPrices, OverheadPrices


def document_of_profile(profile: HardwareProfile) -> dict[str, Any]:
    """Only what JSON has: maps with string keys, lists, strings, numbers, null."""
    document = asdict(profile)
    document["dram_bytes_per_s_by_threads"] = {
        str(threads): rate for threads, rate in profile.dram_bytes_per_s_by_threads.items()
    }
    return document


def profile_of_document(document: Mapping[str, Any]) -> HardwareProfile:
    """The profile that `document_of_profile` made it from.

    Raises:
        KeyError, TypeError, ValueError: it is no such document.
    """
    fields = dict(document)
    by_threads = fields["dram_bytes_per_s_by_threads"].items()
    return HardwareProfile(
        **fields
        | {
            "source": Source(fields["source"]),
            "dram_bytes_per_s_by_threads": {int(threads): rate for threads, rate in by_threads},
            "matmul_flops_per_s": {
                name: _pairs(points) for name, points in fields["matmul_flops_per_s"].items()
            },
            "caches": tuple(CacheLevel(**level) for level in fields["caches"]),
            "spread": {name: (low, high) for name, (low, high) in fields["spread"].items()},
            "notes": tuple(fields["notes"]),
            "prices": None if fields["prices"] is None else _prices(fields["prices"]),
        }
    )


def _prices(document: Mapping[str, Any]) -> OpPrices:
    model = dict(document["model"])
    model["matrix_types"] = {name: tuple(types) for name, types in model["matrix_types"].items()}
    return OpPrices(
        **dict(document)
        | {
            "model": ModelShape(**model),
            "curves": {op: _pairs(points) for op, points in document["curves"].items()},
            "attention": AttentionPrices(**document["attention"]),
            "overhead": OverheadPrices(**document["overhead"]),
        }
    )


def _pairs(points: Any) -> tuple[tuple[int, float], ...]:
    return tuple((int(count), float(value)) for count, value in points)
