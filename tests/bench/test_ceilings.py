"""Bytes and multiply-adds of a workload, counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench.ceilings import Ceilings, ModelWork, Work, fractions, kernel_peak, model_work, work_of
from ridgeline.bench.keys import parse_key
from ridgeline.core.events import StepFinished
from ridgeline.formats.gguf import open_gguf
from ridgeline.kernels.machine_ops import read_seconds
from ridgeline.model.weights import load_weights

FIXTURES = Path(__file__).parents[1] / "golden" / "fixtures"
MODEL = ModelWork(
    step_bytes=1000,
    token_macs=100,
    op_macs={"qkv_proj": 60, "o_proj": 40},
    head_macs=50,
    pair_macs=2,
    kv_bytes=3.0,
)


def work(key: str, budget: int = 512) -> Work | None:
    return work_of(parse_key(key), MODEL, max_num_batched_tokens=budget)


def test_loading_has_no_work_that_is_counted():
    assert work("load_s") is None


def test_a_prefill_reads_the_weights_once_a_step_and_the_context_once_a_piece():
    assert work("prefill_10_tok_s") == Work(1000 + 10 * 3, 10 * 100 + 50 + 55 * 2)
    assert work("prefill_10_tok_s", budget=4) == Work(3 * 1000 + (4 + 8 + 10) * 3, 10 * 100 + 50 + 55 * 2)


def test_decoding_reads_weights_and_context_in_every_step():
    contexts = sum(range(6, 70))
    assert work("decode_b2_depth5_tok_s") == Work(
        64 * 1000 + 2 * contexts * 3, 2 * 64 * 150 + 2 * contexts * 2
    )


def test_end_to_end_is_a_prefill_and_the_steps_after_the_first_token():
    assert work("e2e_b2_4in_3out_out_tok_s") == Work(
        1000 + 2 * 4 * 3 + 2 * 1000 + 2 * (5 + 6) * 3,
        8 * 100 + 2 * (50 + 10 * 2) + 2 * 2 * 150 + 2 * (5 + 6) * 2,
    )


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llama-untied", "tiny-qwen2"])
def test_a_models_tensors_are_counted(name):
    path = FIXTURES / f"{name}.gguf"
    with open_gguf(path) as file:
        config = load_weights(file).config
        sizes = {tensor_name: tensor.size_bytes for tensor_name, tensor in file.tensors.items()}
    counted = model_work(path, config, kv_bytes=8.0)
    q, kv, hidden, ffn = config.q_size, config.kv_size, config.hidden_size, config.ffn_size
    layer = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * ffn
    assert counted.token_macs == config.num_layers * layer == sum(counted.op_macs.values())
    assert counted.op_macs["down_proj"] == config.num_layers * hidden * ffn
    assert counted.head_macs == config.vocab_size * hidden
    is_untied = "output.weight" in sizes
    assert counted.step_bytes == sum(sizes.values()) - (sizes["token_embd.weight"] if is_untied else 0)


def test_the_kernel_peak_is_the_fastest_matrix_op_of_a_step():
    step = StepFinished(
        0.0, 0, [("a", 0, 3), ("b", 0, 7)], 1.0, {"qkv_proj": 2.0, "o_proj": 0.5, "norms": 1e-9}
    )
    assert kernel_peak(step, MODEL) == 10 * 40 / 0.5
    assert kernel_peak(StepFinished(0.0, 0, [("a", 0, 3)], 1.0, {"forward": 1.0}), MODEL) is None


def test_fractions_of_both_ceilings():
    ceilings = Ceilings(read_bytes_s=100.0, kernel_macs_s=1000.0)
    assert fractions(Work(50, 200), ceilings, seconds=2.0) == {
        "of_read_bandwidth": 0.25,
        "of_kernel_peak": 0.1,
    }
    unknown = Ceilings(read_bytes_s=100.0, kernel_macs_s=None)
    assert fractions(Work(50, 200), unknown, seconds=2.0)["of_kernel_peak"] is None


@pytest.mark.parametrize("num_threads", [1, 2])
def test_reading_takes_time(num_threads):
    assert read_seconds(np.ones(3_000_001, np.uint8), num_threads) > 0
