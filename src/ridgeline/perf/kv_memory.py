"""Bytes of K and V: per token, per block, per request at a context, every factor shown."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import ConfigError

_MIN_BLOCK_SIZE = 1


def num_blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: ⌈num_tokens / block_size⌉."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What the size of K and V depends on. Query heads and the hidden size are no part of it.

    `itemsize` is the cache's bytes per element (float16: 2). `num_window_layers` of the layers keep the
    last `window` tokens only; the others keep all.

    Raises:
        ConfigError: a count below 1, more windowed layers than layers, or windowed layers and no window.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    itemsize: int = 2
    window: int | None = None
    num_window_layers: int = 0

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "itemsize"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "must be ≥ 1")
        if not 0 <= self.num_window_layers <= self.num_layers:
            remedy = f"must lie in 0…{self.num_layers}, the number of layers"
            raise ConfigError("window_layers", self.num_window_layers, remedy)
        if self.num_window_layers and (self.window is None or self.window < 1):
            raise ConfigError("window", self.window, f"{self.num_window_layers} layers need one, ≥ 1 token")

    @property
    def layer_bytes_per_token(self) -> int:
        """K and V of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.itemsize

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in all layers (windowed ones too: what a token costs while it is seen)."""
        return self.num_layers * self.layer_bytes_per_token

    @property
    def bytes_per_old_token(self) -> int:
        """The same for a token that has left the windows: the layers that keep all tokens."""
        return (self.num_layers - self.num_window_layers) * self.layer_bytes_per_token

    @property
    def formula(self) -> str:
        """`bytes_per_token` with its factors."""
        text = (
            f"2 (K, V) × {_counted(self.num_layers, 'layer')} × {_counted(self.num_kv_heads, 'KV head')} × "
            f"{self.head_dim} × {self.itemsize} B = {self.bytes_per_token:,} B"
        )
        if self.num_window_layers:
            text += (
                f"; {_counted(self.num_window_layers, 'layer')} of them only for the last {self.window:,} "
                f"tokens, older tokens take {self.bytes_per_old_token:,} B"
            )
        return text

    def block_bytes(self, block_size: int) -> int:
        """One block of `block_size` tokens in all layers."""
        if block_size < _MIN_BLOCK_SIZE:
            raise ConfigError("block_size", block_size, f"must be ≥ {_MIN_BLOCK_SIZE}")
        return block_size * self.bytes_per_token

    def block_formula(self, block_size: int) -> str:
        """`block_bytes` with its factors."""
        return f"{block_size} tokens × {self.bytes_per_token:,} B = {self.block_bytes(block_size):,} B"

    def request(self, num_tokens: int, block_size: int) -> RequestMemory:
        """What a request with `num_tokens` tokens in the cache holds."""
        if num_tokens < 1:
            raise ConfigError("context", num_tokens, "must be ≥ 1 token")
        self.block_bytes(block_size)
        return RequestMemory(shape=self, num_tokens=num_tokens, block_size=block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMemory:
    """One request's K and V: its own tokens', and the whole blocks that are kept for them."""

    shape: KVShape
    num_tokens: int
    block_size: int

    @property
    def num_blocks(self) -> int:
        """Blocks of a layer that keeps all tokens."""
        return num_blocks_of(self.num_tokens, self.block_size)

    @property
    def num_window_blocks(self) -> int:
        """Blocks of a windowed layer: those that hold any of its last `window` tokens."""
        first = self.num_tokens - self._num_window_tokens
        return self.num_blocks - first // self.block_size

    @property
    def slack_tokens(self) -> int:
        """Empty slots of the last block."""
        return self.num_blocks * self.block_size - self.num_tokens

    @property
    def token_bytes(self) -> int:
        """K and V of the tokens that are seen, no slot more."""
        shape = self.shape
        full = (shape.num_layers - shape.num_window_layers) * self.num_tokens
        return shape.layer_bytes_per_token * (full + shape.num_window_layers * self._num_window_tokens)

    @property
    def allocated_bytes(self) -> int:
        """The same in whole blocks."""
        shape = self.shape
        full = (shape.num_layers - shape.num_window_layers) * self.num_blocks
        windowed = shape.num_window_layers * self.num_window_blocks
        return shape.layer_bytes_per_token * self.block_size * (full + windowed)

    @property
    def formula(self) -> str:
        """Both amounts with their factors."""
        shape, windowed = self.shape, self.shape.num_window_layers
        if not windowed:
            return (
                f"{_counted(self.num_tokens, 'token')} × {shape.bytes_per_token:,} B = "
                f"{self.token_bytes:,} B; {_counted(self.num_blocks, 'block')} of {self.block_size} = "
                f"{self.allocated_bytes:,} B, slack {_counted(self.slack_tokens, 'token')}"
            )
        return (
            f"2 (K, V) × {_counted(shape.num_kv_heads, 'KV head')} × {shape.head_dim} × {shape.itemsize} B × "
            f"({_counted(shape.num_layers - windowed, 'layer')} × {self.num_tokens:,} tokens + "
            f"{_counted(windowed, 'layer')} × {self._num_window_tokens:,} tokens) = {self.token_bytes:,} B; "
            f"in whole blocks of {self.block_size}, {self.num_blocks:,} and {self.num_window_blocks:,} a "
            f"layer: {self.allocated_bytes:,} B, slack {_counted(self.slack_tokens, 'token')}"
        )

    @property
    def _num_window_tokens(self) -> int:
        window = self.shape.window
        return self.num_tokens if window is None else min(self.num_tokens, window)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
