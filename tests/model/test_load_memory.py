"""What loading costs: measured in a process of its own, on a model of 63 MB that is one mapped file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from ridgeline.config.model import ModelConfig
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels.ops import NativeModel
from ridgeline.kernels.tensor import QuantTensor

config = ModelConfig(
    name="m", arch="llama", num_layers=1, hidden_size=512, num_heads=8, num_kv_heads=8, head_dim=64,
    ffn_size=65536, vocab_size=1024, context_len=64, rms_norm_eps=1e-5, rope_dim=64, rope_is_neox=False,
    rope_inv_freq=(1.0,) * 32, is_tied=True,
)
stored = np.memmap(sys.argv[1], np.uint8, "r")
at, tensors = 0, {}

def take(name, *shape):
    global at
    kind = QUANT_TYPES["F32" if len(shape) == 1 else "Q4_1"]
    size = kind.size_bytes(int(np.prod(shape)))
    tensors[name] = QuantTensor(name, kind, shape, np.asarray(stored[at : at + size]), is_mapped=True)
    at += size

for name, *shape in [
    ("token_embd", 1024, 512), ("output_norm", 512), ("blk.0.attn_norm", 512), ("blk.0.ffn_norm", 512),
    ("blk.0.attn_q", 512, 512), ("blk.0.attn_k", 512, 512), ("blk.0.attn_v", 512, 512),
    ("blk.0.attn_output", 512, 512), ("blk.0.ffn_gate", 65536, 512), ("blk.0.ffn_up", 65536, 512),
    ("blk.0.ffn_down", 512, 65536),
]:
    take(name + ".weight", *shape)

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])

Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
before = status("VmRSS")
model = NativeModel(config, tensors, block_size=32, num_threads=2)
print(at, status("VmRSS") - before, status("VmHWM") - before)
"""


def test_no_weight_is_in_memory_twice(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    np.zeros(64 << 20, np.uint8).tofile(path)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], check=True, capture_output=True, text=True, timeout=60
    )
    stored, resident, peak = (int(value) for value in run.stdout.split())
    assert stored > 60 << 20
    assert resident <= 1.1 * stored
    assert peak <= 1.2 * stored
