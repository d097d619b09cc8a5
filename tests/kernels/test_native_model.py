"""NativeModel.forward on tiny random models, against a plain float forward pass written out here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.config.model import ModelConfig
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels import ops, reference
from ridgeline.kernels.tensor import QuantTensor

VOCAB = 96
OPS = {"embed", "norms", "qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj", "lm_head"}


@dataclass(frozen=True)
class TinyModel:
    config: ModelConfig
    tensors: Mapping[str, QuantTensor]


def config_of(**changes: object) -> ModelConfig:
    rope_dim = 16
    config = ModelConfig(
        name="tiny", arch="llama", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
        ffn_size=96, vocab_size=VOCAB, context_len=2048, rms_norm_eps=1e-5, rope_dim=rope_dim,
        rope_is_neox=False,
        rope_inv_freq=tuple(10_000.0 ** (-2 * i / rope_dim) for i in range(rope_dim // 2)), is_tied=True,
    )  # fmt: skip
    return replace(config, **changes)


WIDE = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32, "ffn_size": 256}
MODELS = {
    "llama, interleaved, tied, Q4_1": (config_of(), {"": "Q4_1", "token_embd": "Q8_0"}),
    "qwen2, neox, biases, untied, Q8_0": (
        config_of(rope_is_neox=True, has_qkv_bias=True, is_tied=False),
        {"": "Q8_0", "token_embd": "Q4_0", "attn_v": "Q5_0", "ffn_down": "Q5_1"},
    ),
    "qwen3, neox, q/k norm, F32": (
        config_of(rope_is_neox=True, has_qk_norm=True, head_dim=24, rope_dim=16),
        {"": "F32", "ffn_gate": "F16", "ffn_up": "BF16"},
    ),
    "K-quants": (config_of(**WIDE), {"": "Q4_K", "token_embd": "Q6_K", "attn_q": "Q5_K", "ffn_down": "Q6_K"}),
    "odd F16": (config_of(hidden_size=60, ffn_size=70, num_heads=3, num_kv_heads=1), {"": "F16"}),
}


@pytest.fixture(params=sorted(MODELS))
def tiny(request: pytest.FixtureRequest, make_weight, normal) -> TinyModel:
    config, quant_types = MODELS[request.param]
    tensors: dict[str, QuantTensor] = {}

    def matrix(name: str, rows: int, cols: int) -> None:
        part = name.rpartition(".")[2]
        kind = quant_types.get(part, quant_types[""])
        made = make_weight(
            kind, rows, cols, seed=len(tensors), std=1.0 if part == "token_embd" else cols**-0.5
        )
        tensors[f"{name}.weight"] = replace(made, name=f"{name}.weight")

    def vector(name: str, size: int, *, mean: float) -> None:
        values = mean + normal(size, seed=len(tensors), std=0.2)
        tensors[name] = QuantTensor(name, QUANT_TYPES["F32"], (size,), values.view(np.uint8))

    matrix("token_embd", VOCAB, config.hidden_size)
    vector("output_norm.weight", config.hidden_size, mean=1)
    if not config.is_tied:
        matrix("output", VOCAB, config.hidden_size)
    for layer in range(config.num_layers):
        blk = f"blk.{layer}."
        vector(f"{blk}attn_norm.weight", config.hidden_size, mean=1)
        vector(f"{blk}ffn_norm.weight", config.hidden_size, mean=1)
        for part, size in (("q", config.q_size), ("k", config.kv_size), ("v", config.kv_size)):
            matrix(f"{blk}attn_{part}", size, config.hidden_size)
            if config.has_qkv_bias:
                vector(f"{blk}attn_{part}.bias", size, mean=0)
        if config.has_qk_norm:
            vector(f"{blk}attn_q_norm.weight", config.head_dim, mean=1)
            vector(f"{blk}attn_k_norm.weight", config.head_dim, mean=1)
        matrix(f"{blk}attn_output", config.hidden_size, config.q_size)
        matrix(f"{blk}ffn_gate", config.ffn_size, config.hidden_size)
        matrix(f"{blk}ffn_up", config.ffn_size, config.hidden_size)
        matrix(f"{blk}ffn_down", config.hidden_size, config.ffn_size)
    return TinyModel(config, tensors)


def plain_forward(tiny: TinyModel, token_ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Logits of every position of one prompt, in float64 on dequantised weights."""
    config = tiny.config
    w = {n: reference.dequantize_rows(t).astype(np.float64) for n, t in tiny.tensors.items()}
    length = len(token_ids)

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * w[name]

    def rotate(x):
        angle = np.arange(length)[:, None] * np.asarray(config.rope_inv_freq)
        pairs = config.rope_dim // 2
        even, odd = (np.arange(pairs), np.arange(pairs) + pairs) if config.rope_is_neox else (
            np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2))  # fmt: skip
        z = (x[..., even] + 1j * x[..., odd]) * np.exp(1j * angle)[:, None]
        x = x.copy()
        x[..., even], x[..., odd] = z.real, z.imag
        return x

    def heads(x, blk, part):
        y = x @ w[f"{blk}attn_{part}.weight"].T + w.get(f"{blk}attn_{part}.bias", 0)
        y = y.reshape(length, -1, config.head_dim)
        if part == "v":
            return y
        return rotate(norm(y, f"{blk}attn_{part}_norm.weight") if config.has_qk_norm else y)

    x = w["token_embd.weight"][token_ids]
    for layer in range(config.num_layers):
        blk = f"blk.{layer}."
        normed = norm(x, f"{blk}attn_norm.weight")
        q, k, v = (heads(normed, blk, part) for part in "qkv")
        k, v = (np.repeat(y, config.num_heads // config.num_kv_heads, axis=1) for y in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(config.head_dim)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hts,shd->thd", weights, v).reshape(length, -1)
        x = x + attended @ w[f"{blk}attn_output.weight"].T
        normed = norm(x, f"{blk}ffn_norm.weight")
        gate, up = normed @ w[f"{blk}ffn_gate.weight"].T, normed @ w[f"{blk}ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{blk}ffn_down.weight"].T
    head = "token_embd.weight" if config.is_tied else "output.weight"
    return norm(x, "output_norm.weight") @ w[head].T


class Session:
    """A NativeModel with a cache full of NaN, and blocks handed out in mixed order."""

    def __init__(self, tiny: TinyModel, *, block_size=32, num_threads=1, isa=None, num_blocks=200) -> None:
        config = tiny.config
        self.model = ops.NativeModel(
            config, tiny.tensors, block_size=block_size, num_threads=num_threads, isa=isa
        )
        shape = (num_blocks, config.num_layers, config.num_kv_heads, 2, config.head_dim * block_size)
        self.cache = np.full(shape, np.nan, np.float16)
        self.block_size = block_size
        self.free = np.random.default_rng(1).permutation(num_blocks).astype(np.int32)
        self.tables: dict[str, NDArray[np.int32]] = {}
        self.computed: dict[str, int] = {}
        self.op_seconds: dict[str, float] = {}

    def step(self, work: Mapping[str, NDArray[np.int32]], *, copies=()) -> dict[str, NDArray[np.float32]]:
        """Computes the next tokens of each named sequence; returns their logits."""
        positions, starts, seq_lens = [], [0], []
        for name, ids in work.items():
            if name not in self.tables:
                self.tables[name], self.free = self.free[:20], self.free[20:]
            start = self.computed.get(name, 0)
            self.computed[name] = start + len(ids)
            positions += range(start, start + len(ids))
            starts.append(starts[-1] + len(ids))
            seq_lens.append(start + len(ids))
        logits = np.full((len(positions), VOCAB), np.nan, np.float32)
        self.op_seconds = self.model.forward(
            token_ids=np.concatenate(list(work.values())).astype(np.int32),
            positions=np.asarray(positions, np.int32),
            query_start_loc=np.asarray(starts, np.int32),
            seq_lens=np.asarray(seq_lens, np.int32),
            block_tables=np.stack([self.tables[name] for name in work]),
            block_copies=np.asarray(copies, np.int32).reshape(-1, 2),
            logits_rows=np.arange(len(positions), dtype=np.int32),
            kv_cache=self.cache,
            logits=logits,
        )
        return {name: logits[starts[i] : starts[i + 1]] for i, name in enumerate(work)}

    def run(self, token_ids: NDArray[np.int32], chunks: list[int]) -> NDArray[np.float32]:
        """All logits of one sequence, computed in pieces of these lengths (the last takes the rest)."""
        pieces = np.split(token_ids, np.cumsum(chunks))
        return np.concatenate([self.step({"x": piece})["x"] for piece in pieces])


def prompt(length: int, *, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).astype(np.int32)


def test_logits_equal_a_plain_float_forward(tiny, isa):
    ids = prompt(50)
    value = Session(tiny, isa=isa).run(ids, [33])
    expected = plain_forward(tiny, ids)
    quantized = any(t.quant_type.quant_block_size > 1 for t in tiny.tensors.values())
    # Int8 activations cost about 3e-5 a product; with float weights only the fp16 cache rounds.
    limit = 1e-3 if quantized else 1e-7
    assert np.square(value - expected).sum() / np.square(expected).sum() <= limit


def test_bits_do_not_depend_on_chunks(tiny):
    ids = prompt(70)
    whole = Session(tiny).run(ids, [])
    for chunks in ([1] * 40, [16] * 4, [3, 1, 5, 2, 33], [69]):
        np.testing.assert_array_equal(Session(tiny).run(ids, chunks), whole)


def test_bits_do_not_depend_on_company(tiny):
    ids = prompt(40)
    alone = Session(tiny).run(ids, [30] + [1] * 9)
    session = Session(tiny)
    others = {f"other {i}": prompt(i + 1, seed=1) for i in range(7)}
    shared = [session.step({**others, "x": ids[:30]})["x"]]
    for i in range(30, 40):
        shared.append(session.step({"x": ids[i : i + 1], **dict(list(others.items())[: i % 7])})["x"])
    np.testing.assert_array_equal(np.concatenate(shared), alone)


def test_bits_do_not_depend_on_threads_blocks_or_instruction_set(tiny):
    ids = prompt(70)
    expected = Session(tiny).run(ids, [50])
    for isa in ops.available_isas():
        np.testing.assert_array_equal(Session(tiny, isa=isa).run(ids, [50]), expected)
    for num_threads in (2, 3):
        np.testing.assert_array_equal(Session(tiny, num_threads=num_threads).run(ids, [50]), expected)
    for block_size in (16, 64):
        np.testing.assert_array_equal(Session(tiny, block_size=block_size).run(ids, [50]), expected)


def test_copied_blocks_continue_the_sequence(tiny):
    ids = prompt(41)
    expected = Session(tiny).run(ids, [40])[40:]
    session = Session(tiny)
    session.step({"x": ids[:40]})
    session.tables["y"] = session.tables["x"].copy()
    session.tables["y"][1] = session.free[0]
    session.computed["y"] = 40
    copied = session.step({"y": ids[40:]}, copies=[(session.tables["x"][1], session.free[0])])["y"]
    np.testing.assert_array_equal(copied, expected)


def test_only_the_logits_asked_for_are_written(tiny):
    session = Session(tiny)
    every = session.step({"x": prompt(9)})["x"]
    session.computed.clear()
    rows = np.array([7, 0, 7], np.int32)
    logits = np.full((3, VOCAB), np.nan, np.float32)
    session.model.forward(
        token_ids=prompt(9), positions=np.arange(9, dtype=np.int32),
        query_start_loc=np.array([0, 9], np.int32),
        seq_lens=np.array([9], np.int32), block_tables=session.tables["x"][None],
        block_copies=np.empty((0, 2), np.int32), logits_rows=rows, kv_cache=session.cache, logits=logits,
    )  # fmt: skip
    np.testing.assert_array_equal(logits, every[rows])


def test_every_op_reports_its_seconds(tiny):
    session = Session(tiny)
    session.step({"x": prompt(20)})
    assert set(session.op_seconds) == OPS
    assert all(seconds > 0 for seconds in session.op_seconds.values())
