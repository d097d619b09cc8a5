"""
Native kernels of ridgeline; called through ridgeline.kernels.ops only.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

class ModelDims:
    def __init__(self) -> None: ...
    @property
    def num_layers(self) -> int: ...
    @num_layers.setter
    def num_layers(self, arg: int, /) -> None: ...
    @property
    def hidden_size(self) -> int: ...
    @hidden_size.setter
    def hidden_size(self, arg: int, /) -> None: ...
    @property
    def num_heads(self) -> int: ...
    @num_heads.setter
    def num_heads(self, arg: int, /) -> None: ...
    @property
    def num_kv_heads(self) -> int: ...
    @num_kv_heads.setter
    def num_kv_heads(self, arg: int, /) -> None: ...
    @property
    def head_dim(self) -> int: ...
    @head_dim.setter
    def head_dim(self, arg: int, /) -> None: ...
    @property
    def ffn_size(self) -> int: ...
    @ffn_size.setter
    def ffn_size(self, arg: int, /) -> None: ...
    @property
    def vocab_size(self) -> int: ...
    @vocab_size.setter
    def vocab_size(self, arg: int, /) -> None: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @rms_norm_eps.setter
    def rms_norm_eps(self, arg: float, /) -> None: ...
    @property
    def rope_is_neox(self) -> bool: ...
    @rope_is_neox.setter
    def rope_is_neox(self, arg: bool, /) -> None: ...
    @property
    def rope_inv_freq(self) -> list[float]: ...
    @rope_inv_freq.setter
    def rope_inv_freq(self, arg: Sequence[float], /) -> None: ...
    @property
    def has_qkv_bias(self) -> bool: ...
    @has_qkv_bias.setter
    def has_qkv_bias(self, arg: bool, /) -> None: ...
    @property
    def has_qk_norm(self) -> bool: ...
    @has_qk_norm.setter
    def has_qk_norm(self, arg: bool, /) -> None: ...
    @property
    def is_tied(self) -> bool: ...
    @is_tied.setter
    def is_tied(self, arg: bool, /) -> None: ...

class NativeModel:
    def __init__(
        self,
        dims: ModelDims,
        tensors: Mapping[
            str,
            tuple[
                int,
                Sequence[int],
                Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
                bool,
            ],
        ],
        block_size: int,
        num_threads: int,
        isa: str | None,
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    def close(self) -> None: ...
    def forward(
        self,
        token_ids: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        positions: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        query_start_loc: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        seq_lens: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        block_tables: Annotated[
            NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        block_copies: Annotated[
            NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        logits_rows: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        kv_cache: Annotated[
            NDArray[numpy.uint16], dict(shape=(None, None, None, None, None), order="C", device="cpu")
        ],
        logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    ) -> dict[str, float]: ...

def available_isas() -> list[str]: ...
def quant_types() -> list[tuple[int, str, int, int]]: ...
def quantize8(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    q: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu")],
    scales: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    scaled_sums: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    isa: str | None,
) -> None: ...
def quantize16(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    q: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order="C", device="cpu")],
    scales: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    isa: str | None,
) -> None: ...
def matmul(
    data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    type_id: int,
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    num_threads: int,
    isa: str | None,
) -> None: ...
def dequantize_rows(
    data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    type_id: int,
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
) -> None: ...
def rms_norm(
    x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    eps: float,
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    isa: str | None,
) -> None: ...
def rope_tables(
    positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    inv_freq: Sequence[float],
    cosine: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    sine: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
) -> None: ...
def rope(
    heads: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu")],
    cosine: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    sine: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    is_neox: bool,
) -> None: ...
def swiglu(
    gate: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    up: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    isa: str | None,
) -> None: ...
def attention(
    query: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu", writable=False)
    ],
    kv_cache: Annotated[
        NDArray[numpy.uint16], dict(shape=(None, None, None, None, None), order="C", device="cpu")
    ],
    positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    query_start_loc: Annotated[
        NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    block_tables: Annotated[
        NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu")],
    num_threads: int,
    isa: str | None,
) -> None: ...

class MachineBench:
    def __init__(self, num_threads: int, num_bytes: int) -> None: ...
    def stream(self, num_bytes: int, num_passes: int) -> tuple[float, int]: ...
    def read_parts(self, part_bytes: int, num_passes: int) -> tuple[float, int]: ...
    def dispatch(self, num_jobs: int) -> tuple[float, int]: ...
    def attend(
        self, head_dim: int, num_rows: int, num_tiles: int, num_passes: int
    ) -> tuple[float, float]: ...
    def matmul(
        self,
        data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        type_id: int,
        x: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
        num_passes: int,
    ) -> float: ...

def available_sampling_isas() -> list[str]: ...
def read_seconds(
    buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    num_threads: int,
) -> float: ...

class SamplingRow:
    def __init__(self) -> None: ...
    @property
    def temperature(self) -> float: ...
    @temperature.setter
    def temperature(self, arg: float, /) -> None: ...
    @property
    def top_k(self) -> int: ...
    @top_k.setter
    def top_k(self, arg: int, /) -> None: ...
    @property
    def top_p(self) -> float: ...
    @top_p.setter
    def top_p(self, arg: float, /) -> None: ...
    @property
    def min_p(self) -> float: ...
    @min_p.setter
    def min_p(self, arg: float, /) -> None: ...
    @property
    def seed(self) -> int: ...
    @seed.setter
    def seed(self, arg: int, /) -> None: ...
    @property
    def choice_index(self) -> int: ...
    @choice_index.setter
    def choice_index(self, arg: int, /) -> None: ...
    @property
    def num_logprobs(self) -> int: ...
    @num_logprobs.setter
    def num_logprobs(self, arg: int, /) -> None: ...
    @property
    def min_tokens(self) -> int: ...
    @min_tokens.setter
    def min_tokens(self, arg: int, /) -> None: ...
    @property
    def repetition_penalty(self) -> float: ...
    @repetition_penalty.setter
    def repetition_penalty(self, arg: float, /) -> None: ...
    @property
    def presence_penalty(self) -> float: ...
    @presence_penalty.setter
    def presence_penalty(self, arg: float, /) -> None: ...
    @property
    def frequency_penalty(self) -> float: ...
    @frequency_penalty.setter
    def frequency_penalty(self, arg: float, /) -> None: ...
    def hold_back(self, token_ids: Sequence[int]) -> None: ...
    def add_logit_bias(self, token_id: int, bias: float) -> None: ...
    def count_prompt(self, token_ids: Sequence[int]) -> None: ...
    def count_output(self, token_ids: Sequence[int]) -> None: ...
    @property
    def num_counted(self) -> int: ...

class Sampler:
    def __init__(self, vocab_size: int, num_threads: int, isa: str | None) -> None: ...
    def sample(
        self,
        logits: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        rows: Sequence[SamplingRow],
        positions: Sequence[int],
        allowed: Sequence[
            Annotated[NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)]
            | None
        ],
    ) -> tuple[list[int], list[tuple[list[int], list[float], list[int]] | None], float]: ...
    def close(self) -> None: ...
    def token_logprobs(
        self,
        logits: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        token_ids: Sequence[int],
        num_logprobs: int,
    ) -> list[tuple[list[int], list[float], list[int]]]: ...
