"""A machine and a model whose prices are round numbers."""

from __future__ import annotations

from ridgeline.perf.hardware import CacheLevel, HardwareProfile, Source
from ridgeline.perf.model_shape import LAYER_MATRICES, ModelShape
from ridgeline.perf.op_prices import LOGITS_OPS, TOKEN_OPS, AttentionPrices, OpPrices, OverheadPrices

SHAPE = ModelShape(
    name="small",
    num_layers=4,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_size=128,
    vocab_size=256,
    rope_dim=16,
    matrix_types={**{name: ("Q4_1",) * 4 for name in LAYER_MATRICES}, "token_embd": ("Q8_0",)},
    is_tied=True,
)
COUNTS = (*range(1, 17), 32, 64)
PRICES = OpPrices(
    model=SHAPE,
    num_threads=2,
    curves={op: tuple((count, count * 1e-4) for count in COUNTS) for op in (*TOKEN_OPS, *LOGITS_OPS)},
    request_kv_write_s=1e-6,
    attention=AttentionPrices(
        layer_s=1e-6, token_s=2e-9, call_s=3e-9, single_pair_s=4e-11, group_pair_s=5e-11, old_byte_s=6e-11
    ),
    overhead=OverheadPrices(step_s=1e-4, request_s=1e-5, token_s=1e-6),
)
PROFILE = HardwareProfile(
    name="machine",
    source=Source.MEASURED,
    num_threads=2,
    dram_bytes_per_s=1e9,
    dram_bytes_per_s_by_threads={1: 0.7e9, 2: 1e9},
    matmul_flops_per_s={"Q4_1": ((1, 1e9), (8, 4e9)), "Q8_0": ((1, 2e9), (8, 2e9))},
    attention_flops_per_s=1e9,
    memory_bytes=2**30,
    caches=(CacheLevel(name="L3", size_bytes=1024, read_bytes_per_s=1e10),),
    overheads_s={"step": 5e-4},
    spread={"attention": (0.9e9, 1e9)},
    notes=("a note",),
    prices=PRICES,
)
