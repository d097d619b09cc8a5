from __future__ import annotations

import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.config.model import ModelConfig
from ridgeline.errors import ConfigError, EngineError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels import ops
from ridgeline.kernels.tensor import QuantTensor

CONFIG = ModelConfig(
    name="tiny", arch="llama", num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, head_dim=16,
    ffn_size=32, vocab_size=10, context_len=64, rms_norm_eps=1e-5, rope_dim=16, rope_is_neox=False,
    rope_inv_freq=(1.0,) * 8, is_tied=True,
)  # fmt: skip
NUM_BLOCKS = 4


@pytest.fixture
def tensors(make_weight) -> dict[str, QuantTensor]:
    shapes = {
        "token_embd.weight": (10, 32), "output_norm.weight": (32,), "blk.0.attn_norm.weight": (32,),
        "blk.0.ffn_norm.weight": (32,), "blk.0.attn_q.weight": (32, 32), "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32), "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (32, 32),
        "blk.0.ffn_up.weight": (32, 32), "blk.0.ffn_down.weight": (32, 32),
    }  # fmt: skip
    made = {}
    for name, shape in shapes.items():
        weight = make_weight(
            "F32" if len(shape) == 1 else "Q4_0", *(shape if len(shape) == 2 else (1, *shape))
        )
        made[name] = replace(weight, name=name, shape=shape)
    return made


def new_model(tensors, config=CONFIG, *, block_size=16, num_threads=1, isa=None) -> ops.NativeModel:
    return ops.NativeModel(config, tensors, block_size=block_size, num_threads=num_threads, isa=isa)


def good_batch() -> dict[str, np.ndarray]:
    """Two sequences: three tokens of a new one, and the 17th of another."""
    return {
        "token_ids": np.array([1, 2, 3, 4], np.int32),
        "positions": np.array([0, 1, 2, 16], np.int32),
        "query_start_loc": np.array([0, 3, 4], np.int32),
        "seq_lens": np.array([3, 17], np.int32),
        "block_tables": np.array([[0, 99], [1, 2]], np.int32),
        "block_copies": np.array([[1, 3]], np.int32),
        "logits_rows": np.array([2, 3], np.int32),
        "kv_cache": np.zeros((NUM_BLOCKS, 1, 1, 2, 256), np.float16),
        "logits": np.zeros((2, 10), np.float32),
    }


def test_the_good_batch_is_good(tensors):
    batch = good_batch()
    new_model(tensors).forward(**batch)
    assert np.isfinite(batch["logits"]).all()
    assert batch["logits"].any()


def test_a_step_may_want_no_logits_or_hold_no_tokens(tensors):
    model = new_model(tensors)
    no_logits = {"logits_rows": np.empty(0, np.int32), "logits": np.empty((0, 10), np.float32)}
    model.forward(**(good_batch() | no_logits))
    copy_only = good_batch() | no_logits
    copy_only["kv_cache"][1] = 5
    copy_only |= {name: np.empty(0, np.int32) for name in ("token_ids", "positions", "seq_lens")}
    copy_only |= {"query_start_loc": np.zeros(1, np.int32), "block_tables": np.empty((0, 2), np.int32)}
    model.forward(**copy_only)
    assert (copy_only["kv_cache"][3] == 5).all()


def test_calls_from_several_threads_wait_for_each_other(tensors):
    model = new_model(tensors, num_threads=2)
    expected = good_batch()
    model.forward(**expected)

    def run(_: int) -> np.ndarray:
        batch = good_batch()
        model.forward(**batch)
        return batch["logits"]

    with ThreadPoolExecutor(4) as threads:
        for logits in threads.map(run, range(200)):
            np.testing.assert_array_equal(logits, expected["logits"])


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("token_ids", 0, 10),
        ("token_ids", 3, -1),
        ("positions", 0, -1),
        ("positions", 3, 15),
        ("positions", 3, 17),
        ("positions", 2, 1),
        ("query_start_loc", 0, 1),
        ("query_start_loc", 1, 0),
        ("query_start_loc", 1, 4),
        ("query_start_loc", 1, -5),
        ("query_start_loc", 2, 3),
        ("query_start_loc", 2, 5),
        ("seq_lens", 0, 2),
        ("seq_lens", 1, 0),
        ("seq_lens", 1, 33),
        ("seq_lens", 1, -1),
        ("seq_lens", 1, 2**31 - 1),
        ("block_tables", (1, 1), NUM_BLOCKS),
        ("block_tables", (0, 0), -1),
        ("block_copies", (0, 0), NUM_BLOCKS),
        ("block_copies", (0, 1), -1),
        ("logits_rows", 0, 4),
        ("logits_rows", 1, -1),
    ],
)
def test_a_wrong_value_is_refused_by_name(tensors, name, index, value):
    batch = good_batch()
    batch[name][index] = value
    with pytest.raises(EngineError, match=r"\w+\[\d+\] = -?\d+: "):
        new_model(tensors).forward(**batch)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("token_ids", np.zeros(3, np.int32)),
        ("token_ids", np.zeros(4, np.int64)),
        ("positions", np.zeros((4, 1), np.int32)),
        ("seq_lens", np.zeros(3, np.int32)),
        ("query_start_loc", np.zeros(2, np.int32)),
        ("block_tables", np.zeros((1, 2), np.int32)),
        ("block_tables", np.zeros((2, 4), np.int32)[:, ::2]),
        ("block_copies", np.zeros((1, 3), np.int32)),
        ("logits_rows", np.zeros(3, np.int32)),
        ("kv_cache", np.zeros((4, 1, 1, 2, 512), np.float16)),
        ("kv_cache", np.zeros((4, 2, 1, 2, 256), np.float16)),
        ("kv_cache", np.zeros((4, 1, 1, 2, 256), np.float32)),
        ("logits", np.zeros((2, 11), np.float32)),
        ("logits", np.zeros((2, 10), np.float64)),
    ],
)
def test_a_wrong_array_is_refused(tensors, name, wrong):
    with pytest.raises(EngineError):
        new_model(tensors).forward(**(good_batch() | {name: wrong}))


def test_random_batches_never_reach_outside_the_cache(tensors):
    model = new_model(tensors)
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(2000):
        batch = good_batch()
        for name in rng.choice(list(batch)[:7], size=rng.integers(1, 3)):
            flat = batch[name].reshape(-1)
            flat[rng.integers(flat.size)] = rng.choice(
                [-1, 0, 1, 2, 3, 5, 16, 17, 10**6, 2**31 - 1, -(2**31)]
            )
        try:
            model.forward(**batch)
        except EngineError:
            refused += 1
    assert refused > 1000


def test_arrays_cut_short_are_refused_or_harmless(tensors):
    model = new_model(tensors)
    rng = np.random.default_rng(4)
    refused = 0
    for _ in range(600):
        batch = good_batch()
        for name in rng.choice(list(batch), size=rng.integers(1, 3)):
            axis = rng.integers(batch[name].ndim)
            length = batch[name].shape[axis]
            kept = np.arange(rng.choice([max(length - 1, 0), 0, length + 1])) % max(length, 1)
            batch[name] = np.ascontiguousarray(batch[name].take(kept, axis)) if length else batch[name]
        try:
            model.forward(**batch)
        except EngineError:
            refused += 1
    assert refused > 500


def test_an_unknown_instruction_set_names_the_known_ones(tensors):
    with pytest.raises(ConfigError, match=r"isa='mmx'.*scalar"):
        new_model(tensors, isa="mmx")


@pytest.mark.parametrize("isa", ops.available_isas())
def test_the_instruction_set_can_be_forced(tensors, isa):
    assert new_model(tensors, isa=isa).isa == isa


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 12}, "head_dim"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"num_layers": 0}, "at least 1"),
    ],
)
def test_impossible_dimensions_are_refused(tensors, change, message):
    with pytest.raises(EngineError, match=message):
        new_model(tensors, replace(CONFIG, **change))


def test_block_size_and_threads_are_checked(tensors):
    with pytest.raises(EngineError, match="block_size"):
        new_model(tensors, block_size=24)
    with pytest.raises(EngineError, match="num_threads"):
        new_model(tensors, num_threads=0)


def test_wrong_tensors_are_named(tensors):
    name = "blk.0.ffn_up.weight"
    good = tensors[name]
    wrongs = {
        "missing": None,
        r"\[16, 64\]": replace(good, shape=(16, 64)),
        "bytes": replace(good, data=good.data[:-18]),
        "odd address": replace(good, data=np.concatenate([[np.uint8(0)], good.data])[1:]),
        "type": replace(good, quant_type=replace(QUANT_TYPES["Q4_0"], type_id=99)),
    }
    for message, wrong in wrongs.items():
        changed = {k: v for k, v in (tensors | {name: wrong}).items() if v is not None}
        with pytest.raises(EngineError, match=f"blk.0.ffn_up.weight.*{message}"):
            new_model(changed)


def num_native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_close_ends_threads_and_lets_go_of_the_weights(tensors):
    before = num_native_threads()
    released = weakref.ref(tensors["token_embd.weight"].data)
    model = new_model(tensors, num_threads=3)
    assert num_native_threads() == before + 2
    tensors.clear()
    gc.collect()
    model.forward(**good_batch())
    model.close()
    model.close()
    gc.collect()
    assert num_native_threads() == before
    assert released() is None
    with pytest.raises(EngineError, match="closed"):
        model.forward(**good_batch())


def test_dropping_the_last_reference_is_as_good_as_closing(tensors):
    before = num_native_threads()
    released = weakref.ref(tensors["token_embd.weight"].data)
    model = new_model(tensors, num_threads=2)
    tensors.clear()
    del model
    gc.collect()
    assert num_native_threads() == before
    assert released() is None


def test_leaving_the_context_closes(tensors):
    with new_model(tensors) as model:
        model.forward(**good_batch())
    with pytest.raises(EngineError, match="closed"):
        model.forward(**good_batch())
