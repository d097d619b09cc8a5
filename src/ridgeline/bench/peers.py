"""Other engines, measured beside ours: which ones, how they are run, and the ratios.

Figures of two engines compare only when they were taken side by side: same machine, threads and file, one
right after the other.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ridgeline.errors import ConfigError

SCRIPTS = Path(__file__).parents[3] / "benchmarks" / "peers"
"""The benchmark scripts of the peers, in a source checkout."""
_TIMEOUT_S = 1800
_DESCRIPTION = ("engine", "version", "format", "settings")


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine in one configuration: `python` runs `script`, which prints JSON under our keys.

    `keys` is a pattern of what it is measured on.
    """

    name: str
    python: Path
    script: Path
    arguments: tuple[str, ...] = ()
    keys: str = ".*"

    def measures(self, key: str) -> bool:
        """Whether this peer is run for `key`."""
        return re.fullmatch(self.keys, key) is not None


@dataclass(frozen=True, slots=True)
class PeerSample:
    """One sample of one key."""

    value: float
    others_cpu: float
    description: Mapping[str, object]


SAME_FILE = "llama.cpp"
_LLAMA = ("venv-llama", "bench_llama.py")
_ALL = ".*"
# Name, environment, script, arguments, keys. Flash attention is slower only with a long context.
_CONFIGURATIONS: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    (SAME_FILE, *_LLAMA, (), _ALL),
    ("llama.cpp Q4_0", *_LLAMA, ("--requantize", "q4_0", "--ubatch", "2048"), _ALL),
    ("llama.cpp Q8_0", *_LLAMA, ("--requantize", "q8_0", "--ubatch", "2048"), _ALL),
    ("llama.cpp, no flash attention", *_LLAMA, ("--flash-attn", "off"), r"decode_b1_depth\d+_tok_s"),
    (
        "llama.cpp Q4_0, no flash attention",
        *_LLAMA,
        ("--requantize", "q4_0", "--flash-attn", "off"),
        r"decode_b1_depth\d+_tok_s",
    ),
    ("transformers float32", "venv-hf", "bench_hf.py", (), r"prefill_512_tok_s"),
)


def find_peers(directory: Path, scripts: Path = SCRIPTS) -> list[Peer]:
    """The peers whose environment lies under `directory`, the one on the same file first.

    Raises:
        ConfigError: none is there, or this is no source checkout.
    """
    if not scripts.is_dir():
        raise ConfigError("peers", str(directory), f"needs a source checkout: there is no {scripts}")
    peers = []
    for name, environment, script, arguments, keys in _CONFIGURATIONS:
        python = directory / environment / "bin" / "python"
        if not python.exists():
            continue
        if "--requantize" in arguments:
            arguments = (*arguments, "--requantized-dir", str(directory))  # noqa: PLW2901
        peers.append(Peer(name, python, scripts / script, arguments, keys))
    if not peers:
        raise ConfigError("peers", str(directory), "holds neither venv-llama nor venv-hf")
    return peers


def measure_peer(peer: Peer, key: str, *, model_path: Path, num_threads: int) -> PeerSample:
    """One sample of `key` in a process of its own.

    Raises:
        ConfigError: the peer's script failed, took too long or printed something else.
    """
    command = [str(peer.python), str(peer.script), "--model", str(model_path), "--threads", str(num_threads)]
    command += ["--repeats", "1", "--only", key, "--json", *peer.arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError("peers", peer.name, f"took more than {_TIMEOUT_S} s for {key}") from None
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ConfigError("peers", peer.name, f"its benchmark failed: {reason[0]}")
    try:
        return parse_sample(json.loads(done.stdout), key)
    except (json.JSONDecodeError, KeyError):
        raise ConfigError("peers", peer.name, f"its benchmark printed no {key}") from None


def parse_sample(document: Mapping[str, object], key: str) -> PeerSample:
    """The sample of `key` in what a peer printed: an object with `median`, or a plain number."""
    figures = document[key]
    others_cpu = 0.0
    if isinstance(figures, Mapping):
        others_cpu = float(figures.get("others_cpu") or 0.0)
        figures = figures["median"]
    assert isinstance(figures, int | float)
    description = {name: document[name] for name in _DESCRIPTION if name in document}
    return PeerSample(float(figures), others_cpu, description)


def ratio(ours: Sequence[float], peer: Sequence[float], *, less_is_better: bool) -> dict[str, float]:
    """How many times better ours is, above 1 if it is: median, least and greatest of the rounds' ratios."""
    ratios = [
        theirs / own if less_is_better else own / theirs for own, theirs in zip(ours, peer, strict=True)
    ]
    return {"median": median(ratios), "min": min(ratios), "max": max(ratios)}


def same_file_ratio(
    ours: Sequence[float], peers: Mapping[str, Sequence[float]], *, less_is_better: bool
) -> dict[str, float] | None:
    """The ratio to the peer that reads the very same file; None where it was not measured."""
    if SAME_FILE not in peers:
        return None
    return ratio(ours, peers[SAME_FILE], less_is_better=less_is_better)


def best_ratio(
    ours: Sequence[float], peers: Mapping[str, Sequence[float]], *, less_is_better: bool
) -> dict[str, object]:
    """The ratio to the peer with the best median, and its name."""
    choose = min if less_is_better else max
    name = choose(peers, key=lambda peer: median(peers[peer]))
    return {"name": name, **ratio(ours, peers[name], less_is_better=less_is_better)}
