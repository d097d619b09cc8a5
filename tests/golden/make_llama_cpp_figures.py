"""llama.cpp on the fixtures' texts and models, compared with transformers in float32.

    python make_llama_cpp_figures.py dump MODEL.gguf DIR          # transformers: logits of several topics
    python make_llama_cpp_figures.py compare MODEL.gguf DIR       # llama-cpp-python: its figures on them
    python make_llama_cpp_figures.py tiny                         # llama-cpp-python: the tiny models
    python make_llama_cpp_figures.py tokenizer MODEL.gguf         # llama-cpp-python: the tokenizer cases

Two steps because the two packages usually live in two environments. `dump` also prints the figures of
transformers with every matrix product's input rounded to int8 in groups of 32. README.md has the figures.
"""

from __future__ import annotations

import json
import pydoc_data.topics
import sys
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"
# All topics of Python 3.11 with about 1,000 tokens or more that are prose; cut at MAX_IDS.
TOPICS = ("identifiers", "objects", "async", "numeric-types", "raise", "function", "calls", "naming")
MAX_IDS = 1300
NO_FLASH_ATTENTION = 0
GGML_TYPE_F32 = 0


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise log-probabilities in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def round_to_int8(_module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A matrix product's input as int8 in groups of 32 with one float16 scale each, as llama.cpp has it."""
    import torch

    groups = inputs[0].reshape(-1, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    return ((torch.round(groups * inverse) * scale.half().float()).reshape(inputs[0].shape),)


def dump_logits(model_path: Path, directory: Path) -> None:
    """Write transformers' float32 logits of every topic; print its figures with int8 activations."""
    import torch
    from make_model_oracle import load_model
    from make_tokenizer_oracle import build_hf_tokenizer, read_metadata

    torch.set_num_threads(1)
    tokenizer, model = build_hf_tokenizer(read_metadata(model_path)), load_model(model_path)
    directory.mkdir(exist_ok=True)
    logits = {}
    for rounded in (False, True):
        if rounded:
            for module in model.modules():
                if isinstance(module, torch.nn.Linear):
                    module.register_forward_pre_hook(round_to_int8)
        for topic in TOPICS:
            ids = tokenizer.encode(pydoc_data.topics.topics[topic], add_special_tokens=False)[:MAX_IDS]
            with torch.inference_mode():
                got = model(input_ids=torch.tensor([ids])).logits[0].numpy()
            if rounded:
                print_figures(f"int8 activations, {topic}", compare(logits[topic], got, np.array(ids)))
            else:
                logits[topic] = got
                np.savez(directory / f"{topic}.npz", ids=np.array(ids, np.int32), logits=got)


def print_figures(label: str, figures: dict[str, float]) -> None:
    """One line of figures."""
    sys.stdout.write(f"{label}: {', '.join(f'{name} {value:.5g}' for name, value in figures.items())}\n")


def llama_cpp_logits(model_path: Path, sequences: list[np.ndarray], **context: Any) -> list[np.ndarray]:
    """llama.cpp's logits at every position of each sequence, through its low-level API on one thread."""
    import llama_cpp

    llama_cpp.llama_log_set(_SILENT, None)
    model = llama_cpp.llama_model_load_from_file(
        str(model_path).encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 2048, 2048, 512
    params.n_threads = params.n_threads_batch = 1
    for name, value in context.items():
        setattr(params, name, value)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    results = []
    for ids in sequences:
        state = llama_cpp.llama_init_from_model(model, params)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        for i, token in enumerate(ids.tolist()):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        batch.n_tokens = len(ids)
        assert llama_cpp.llama_decode(state, batch) == 0
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(state), shape=(len(ids), vocab_size))
        results.append(logits.copy())
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(state)
    llama_cpp.llama_model_free(model)
    return results


def compare(oracle_logits: np.ndarray, logits: np.ndarray, ids: np.ndarray) -> dict[str, float]:
    """KL divergence of `logits` from the oracle's distribution, top-1 agreement and perplexities."""
    oracle, other = log_softmax(oracle_logits), log_softmax(logits)
    divergence = (np.exp(oracle) * (oracle - other)).sum(axis=-1)
    agree = oracle.argmax(axis=-1) == other.argmax(axis=-1)
    best = np.sort(oracle_logits, axis=-1)[:, -2:]
    margins = best[:, 1] - best[:, 0]
    rows = np.arange(len(ids) - 1)
    return {
        "positions": len(ids),
        "mean KL": float(divergence.mean()),
        "largest KL": float(divergence.max()),
        "top-1 agreement %": 100 * float(agree.mean()),
        "largest oracle margin lost": float(margins[~agree].max(initial=0.0)),
        "perplexity": float(np.exp(-other[rows, ids[1:]].mean())),
        "oracle perplexity": float(np.exp(-oracle[rows, ids[1:]].mean())),
    }


def compare_topics(model_path: Path, directory: Path) -> None:
    """Figures on every dumped topic: llama.cpp's defaults, and with float32 keys and values."""
    f32_cache = {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32, "flash_attn_type": NO_FLASH_ATTENTION}
    for label, context in (("defaults", {}), ("float32 cache, no flash attention", f32_cache)):
        for topic in TOPICS:
            with np.load(directory / f"{topic}.npz") as dumped:
                ids, oracle = dumped["ids"], dumped["logits"]
            (logits,) = llama_cpp_logits(model_path, [ids], **context)
            print_figures(f"llama.cpp, {label}, {topic}", compare(oracle, logits, ids))


def compare_tiny() -> None:
    """Largest difference of logits on each tiny model; a wrong file convention would show as units."""
    arrays = np.load(FIXTURES / "tiny-logits.npz")
    for path in sorted(FIXTURES.glob("tiny-*.gguf")):
        lengths = [key.rsplit("_", 1)[1] for key in arrays.files if key.startswith(f"{path.stem}.ids_")]
        results = llama_cpp_logits(
            path,
            [arrays[f"{path.stem}.ids_{n}"] for n in lengths],
            type_k=GGML_TYPE_F32,
            type_v=GGML_TYPE_F32,
            flash_attn_type=NO_FLASH_ATTENTION,
            n_ctx=256,
        )
        pairs = [(arrays[f"{path.stem}.logits_{n}"], got) for n, got in zip(lengths, results, strict=True)]
        differences = ", ".join(f"{abs(expected - got).max():.2g}" for expected, got in pairs)
        sys.stdout.write(f"{path.stem}: max |difference| at lengths {', '.join(lengths)}: {differences}\n")


def compare_tokenizer(model_path: Path) -> None:
    """Print the strings that llama.cpp tokenises unlike Hugging Face."""
    import llama_cpp

    model = llama_cpp.Llama(str(model_path), vocab_only=True, verbose=False)
    cases = json.loads((FIXTURES / "tokenizer_cases.json").read_text())
    texts = [(c["group"], c["text"], c["ids"], True) for c in cases["cases"]]
    texts += [(c["group"], c["text"], c.get("plain_ids", c["ids"]), False) for c in cases["cases"]]
    texts += [(f"chat {c['name']}", c["text"], c["ids"], True) for c in cases["chats"]]
    differing = 0
    for group, text, ids, special in texts:
        got = model.tokenize(text.encode(), add_bos=False, special=special) if text else []
        if got != ids:
            differing += 1
            line = f"{group}, special={special}: {text!r:.80}\n    HF {ids}\n    llama.cpp {got}"
            sys.stdout.write(line[:600] + "\n")
    sys.stdout.write(f"{differing} of {len(texts)} differ\n")


def _silent_callback() -> Any:
    try:
        import llama_cpp
    except ImportError:  # the dump step runs without it
        return None
    return llama_cpp.llama_log_callback(lambda _level, _text, _data: None)


_SILENT = _silent_callback()


if __name__ == "__main__":
    if sys.argv[1] == "dump":
        dump_logits(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1] == "compare":
        compare_topics(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1] == "tokenizer":
        compare_tokenizer(Path(sys.argv[2]))
    else:
        compare_tiny()
