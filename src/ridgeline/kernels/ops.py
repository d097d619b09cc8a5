"""The native kernels, typed: `NativeModel` for the engine, single ops for the tests of the kernels.

This is the only importer of the extension module. Arrays must be C-contiguous and of exactly the dtype that
is named; `isa` picks the kernels of one instruction set (`available_isas`), None the fastest. Wrong shapes
and values raise EngineError: whoever calls this has checked the user's input already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from ridgeline.config.model import ModelConfig
from ridgeline.errors import ConfigError, EngineError
from ridgeline.kernels import _native
from ridgeline.kernels.reference import PagedContext
from ridgeline.kernels.tensor import QuantTensor

Float32Array = NDArray[np.float32]
Int32Array = NDArray[np.int32]


def available_isas() -> tuple[str, ...]:
    """Names of the instruction sets this machine has kernels for, slowest first."""
    return tuple(_native.available_isas())


class StepArrays(TypedDict):
    """What `NativeModel.forward` takes, by name: S sequences with T tokens in all, then what it writes."""

    token_ids: Int32Array
    """[T]."""
    positions: Int32Array
    """[T]; a sequence's tokens are the last ones of its context."""
    query_start_loc: Int32Array
    """[S + 1], first row of each sequence, then T."""
    seq_lens: Int32Array
    """[S], context lengths after this step, in tokens."""
    block_tables: Int32Array
    """[S, B] block ids; entries past a context are not looked at."""
    block_copies: Int32Array
    """[C, 2], pairs (from, to), copied in order before anything else."""
    logits_rows: Int32Array
    """[R] rows of the batch whose logits are wanted."""
    kv_cache: NDArray[np.float16]
    """[num_blocks, num_layers, num_kv_heads, 2, head_dim · block_size], K as [head_dim][block_size], V as
    [block_size][head_dim]; written; slots not yet written may hold anything."""
    logits: Float32Array
    """[R, vocab_size], written."""


class NativeModel:
    """A model ready to compute on weights that it packs for its kernels, with its own threads.

    Args:
        config: dimensions; `head_dim` must be a multiple of 8.
        tensors: by GGUF name; not needed any more once this is made. Pages of mapped ones go back to the
            system as soon as they are packed, so that no weight is in memory twice.
        block_size: tokens per KV block, a multiple of 16.
        num_threads: workers, the calling thread among them.
        isa: name of an instruction set, None for the fastest.

    Raises:
        ConfigError: `isa` is none of `available_isas`.
        EngineError: a dimension, or a tensor's presence, shape or size, is wrong.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, QuantTensor],
        *,
        block_size: int,
        num_threads: int,
        isa: str | None = None,
    ) -> None:
        _check_isa(isa)
        stored = {
            name: (tensor.quant_type.type_id, list(tensor.shape), tensor.data.reshape(-1), tensor.is_mapped)
            for name, tensor in tensors.items()
        }
        with _engine_errors():
            try:
                self._native = _native.NativeModel(_dims(config), stored, block_size, num_threads, isa)
            except RuntimeError as error:
                remedy = f"the system does not give the threads ({error}); take fewer"
                raise ConfigError("num_threads", num_threads, remedy) from None

    @property
    def isa(self) -> str:
        """The instruction set whose kernels run."""
        return self._native.isa

    def forward(self, **arrays: Unpack[StepArrays]) -> dict[str, float]:
        """Compute one step of the whole ragged batch; returns op name → seconds.

        Copies blocks, writes K and V of every token, and the logits of `logits_rows`. The interpreter lock
        is released; calls from several threads wait for each other.

        Raises:
            EngineError: an array has a wrong dtype, shape or value, or the model is closed.
        """
        try:  # spelled out: once a step, a context manager is felt
            return self._native.forward(
                token_ids=arrays["token_ids"],
                positions=arrays["positions"],
                query_start_loc=arrays["query_start_loc"],
                seq_lens=arrays["seq_lens"],
                block_tables=arrays["block_tables"],
                block_copies=arrays["block_copies"],
                logits_rows=arrays["logits_rows"],
                kv_cache=arrays["kv_cache"].view(np.uint16),
                logits=arrays["logits"],
            )
        except (ValueError, TypeError) as error:
            raise _engine_error(error) from error

    def close(self) -> None:
        """End the threads and free the weights; waits for a step in progress. May be repeated."""
        self._native.close()

    def __enter__(self) -> NativeModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def dequantize_rows(weight: QuantTensor) -> Float32Array:
    """See `reference.dequantize_rows`; packs the matrix and reads the rows back."""
    out = np.empty(weight.shape, np.float32)
    with _engine_errors():
        _native.dequantize_rows(weight.data.reshape(-1), weight.quant_type.type_id, out)
    return out


def quantize_activations(
    x: Float32Array, *, isa: str | None = None
) -> tuple[NDArray[np.int8], Float32Array, Float32Array]:
    """See `reference.quantize_activations`."""
    q = np.empty(x.shape, np.int8)
    scales = np.empty((x.shape[0], x.shape[1] // 32), np.float32)
    scaled_sums = np.empty_like(scales)
    with _engine_errors():
        _native.quantize8(x, q, scales, scaled_sums, isa)
    return q, scales, scaled_sums


def quantize_activations_16(
    x: Float32Array, *, isa: str | None = None
) -> tuple[NDArray[np.int16], Float32Array]:
    """See `reference.quantize_activations_16`."""
    q = np.empty(x.shape, np.int16)
    scales = np.empty((x.shape[0], x.shape[1] // 32), np.float32)
    with _engine_errors():
        _native.quantize16(x, q, scales, isa)
    return q.reshape(*scales.shape, 8, 4)[..., [0, 2, 1, 3]].reshape(x.shape), scales


def matmul(
    weight: QuantTensor, x: Float32Array, *, num_threads: int = 1, isa: str | None = None
) -> Float32Array:
    """See `reference.matmul`; summed in float32, in one order per (token, row) whatever T and the threads."""
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    with _engine_errors():
        _native.matmul(weight.data.reshape(-1), weight.quant_type.type_id, x, out, num_threads, isa)
    return out


def rms_norm(x: Float32Array, weight: Float32Array, eps: float, *, isa: str | None = None) -> Float32Array:
    """See `reference.rms_norm`, for x[T, N]."""
    out = np.empty_like(x)
    with _engine_errors():
        _native.rms_norm(x, weight, eps, out, isa)
    return out


def rope_tables(positions: Int32Array, inv_freq: Sequence[float]) -> tuple[Float32Array, Float32Array]:
    """See `reference.rope_tables`."""
    cosine = np.empty((len(positions), len(inv_freq)), np.float32)
    sine = np.empty_like(cosine)
    with _engine_errors():
        _native.rope_tables(positions, list(inv_freq), cosine, sine)
    return cosine, sine


def rope(heads: Float32Array, cosine: Float32Array, sine: Float32Array, *, is_neox: bool) -> Float32Array:
    """See `reference.rope`."""
    rotated = heads.copy()
    with _engine_errors():
        _native.rope(rotated, cosine, sine, is_neox)
    return rotated


def swiglu(gate: Float32Array, up: Float32Array, *, isa: str | None = None) -> Float32Array:
    """See `reference.swiglu`, for [T, N]."""
    out = np.empty_like(gate)
    with _engine_errors():
        _native.swiglu(gate, up, out, isa)
    return out


def attention(
    query: Float32Array,
    kv_cache: NDArray[np.float16],
    context: PagedContext,
    *,
    num_threads: int = 1,
    isa: str | None = None,
) -> Float32Array:
    """See `reference.attention`; a sequence's rows are the last positions of its context."""
    out = np.empty_like(query)
    positions, starts = context.positions, context.query_start_loc
    seq_lens = positions[starts[1:] - 1] + np.int32(1)
    cache = kv_cache.view(np.uint16)
    with _engine_errors():
        _native.attention(
            query, cache, positions, starts, seq_lens, context.block_tables, out, num_threads, isa
        )
    return out


def _check_isa(isa: str | None) -> None:
    if isa is not None and isa not in available_isas():
        raise ConfigError("isa", isa, f"this machine has {', '.join(available_isas())}")


def _dims(config: ModelConfig) -> _native.ModelDims:
    dims = _native.ModelDims()
    dims.num_layers = config.num_layers
    dims.hidden_size = config.hidden_size
    dims.num_heads = config.num_heads
    dims.num_kv_heads = config.num_kv_heads
    dims.head_dim = config.head_dim
    dims.ffn_size = config.ffn_size
    dims.vocab_size = config.vocab_size
    dims.rms_norm_eps = config.rms_norm_eps
    dims.rope_is_neox = config.rope_is_neox
    dims.rope_inv_freq = list(config.rope_inv_freq)
    dims.has_qkv_bias = config.has_qkv_bias
    dims.has_qk_norm = config.has_qk_norm
    dims.is_tied = config.is_tied
    return dims


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn what the extension module raises into an EngineError."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise _engine_error(error) from error


def _engine_error(error: Exception) -> EngineError:
    return EngineError(str(error).partition("\n")[0])
