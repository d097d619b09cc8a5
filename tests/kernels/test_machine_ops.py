"""Micro-benchmarks do the work they are timed for: their checks are those of NumPy, or counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import EngineError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels import ops
from ridgeline.kernels.machine_ops import MachineBench
from ridgeline.kernels.tensor import QuantTensor

MIB = 2**20


def sum_of_words(num_bytes: int) -> int:
    return int(np.arange(num_bytes // 8, dtype=np.uint64).sum())


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_streaming_reads_every_word_of_a_pass(num_threads: int) -> None:
    bench = MachineBench(num_threads, 5 * MIB)
    for num_bytes in (256, 3 * MIB + 512, 5 * MIB):
        seconds, check = bench.stream_s(num_bytes, num_passes=3)
        assert seconds > 0
        assert check == sum_of_words(num_bytes)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_each_thread_reads_its_own_part_in_every_pass(num_threads: int) -> None:
    bench = MachineBench(num_threads, 3 * MIB)
    seconds, check = bench.parts_s(64 * 1024, num_passes=7)
    assert seconds > 0
    assert check == 7 * sum_of_words(num_threads * 64 * 1024)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_all_threads_meet_in_every_empty_job(num_threads: int) -> None:
    seconds, num_met = MachineBench(num_threads, 256).dispatch_s(1000)
    assert seconds > 0
    assert num_met % num_threads == 0
    assert num_threads <= num_met <= 1000 * num_threads


@pytest.mark.parametrize("num_threads", [1, 2])
def test_attention_sees_every_position_from_every_row(num_threads: int) -> None:
    bench = MachineBench(num_threads, 256)
    seconds, weights = bench.attend_s(head_dim=64, num_rows=24, num_tiles=5, num_passes=3)
    assert seconds > 0
    assert weights == pytest.approx(num_threads * 24 * 5 * 32)


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "F16"])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_the_timed_product_is_the_op_s_own(name: str, num_tokens: int) -> None:
    quant_type = QUANT_TYPES[name]
    rng = np.random.default_rng(1)
    rows, cols = 40, 256
    data = np.full(quant_type.size_bytes(cols) * rows, 3, np.uint8)
    x = rng.standard_normal((num_tokens, cols), np.float32)
    seconds, out = MachineBench(2, 256).matmul_s(quant_type, data, x, num_passes=2)
    assert seconds > 0
    weight = QuantTensor("w", quant_type, (rows, cols), data)
    assert np.array_equal(out, ops.matmul(weight, x))


def test_what_can_not_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 256"):
        MachineBench(1, 100)
    with pytest.raises(ValueError, match="num_threads"):
        MachineBench(0, 256)
    bench = MachineBench(2, 1024)
    with pytest.raises(ValueError, match="exceed the memory"):
        bench.stream_s(2048, num_passes=1)
    with pytest.raises(ValueError, match="exceed the memory"):
        bench.parts_s(1024, num_passes=1)
    with pytest.raises(ValueError, match="num_passes"):
        bench.stream_s(256, num_passes=0)
    with pytest.raises(EngineError, match="size"):
        bench.matmul_s(
            QUANT_TYPES["Q8_0"], np.zeros(35, np.uint8), np.zeros((1, 32), np.float32), num_passes=1
        )
