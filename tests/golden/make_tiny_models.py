"""Write `fixtures/tiny-*.gguf` and `fixtures/tiny-logits.npz`: random models of every architecture and type.

    python make_tiny_models.py

Each model is a transformers class with random weights, written with `gguf.GGUFWriter` under the conventions
of llama.cpp's converter. The logits are transformers' in float32 on exactly the weights the file holds
(quantised and dequantised by the `gguf` package; K-quant blocks are random bytes with chosen scales).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QType
from make_model_oracle import LAYER_TENSORS, LONG_PROMPT, unpermute
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_utils import PreTrainedModel

FIXTURES = Path(__file__).parent / "fixtures"
VOCAB_SIZE = 320
SEQUENCE_LENGTHS = (1, 17, 70)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_ORIGINAL_CONTEXT = 64

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
EXTRA_LAYER_TENSORS = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Standard deviation of a weight times sqrt(fan in); embeddings and norms are set apart below.
GAINS = {"attn_q.weight": 1.6, "attn_k.weight": 1.6, "ffn_down.weight": 1.5}


@dataclass(frozen=True)
class TinyModel:
    """What to make: an architecture, changes to its config, and the types of its matrices."""

    name: str
    arch: str = "llama"
    qtype: QType = QType.F32
    overrides: Mapping[str, Any] = field(default_factory=dict)
    qtypes: Mapping[str, QType] = field(default_factory=dict)
    chat_template: str | None = None
    output_gain: float = 1.0  # on the last norm: what rounding costs grows with the spread of the logits

    def qtype_of(self, tensor: str, ndim: int) -> QType:
        """Type of a tensor in the file: vectors are always F32, as in llama.cpp's converter."""
        if ndim == 1:
            return QType.F32
        return self.qtypes.get(tensor, self.qtypes.get(tensor.split(".", 2)[-1], self.qtype))


K_QUANTS = {
    "token_embd.weight": QType.Q6_K,
    "attn_q.weight": QType.Q4_K,
    "attn_k.weight": QType.Q5_K,
    "attn_v.weight": QType.Q6_K,
    "attn_output.weight": QType.Q4_K,
    "ffn_gate.weight": QType.Q5_K,
    "ffn_up.weight": QType.Q4_K,
    "ffn_down.weight": QType.Q6_K,
    "blk.1.attn_q.weight": QType.Q6_K,
    "blk.1.attn_output.weight": QType.Q5_K,
}
K_SHAPE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}

MODELS = [
    TinyModel("tiny-llama", chat_template=CHAT_TEMPLATE),
    TinyModel("tiny-llama-untied", qtype=QType.F16, overrides={"tie_word_embeddings": False}),
    TinyModel(
        "tiny-llama-rope-factors",
        qtype=QType.F16,
        overrides={
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": LLAMA3_ORIGINAL_CONTEXT,
                **LLAMA3_ROPE,
            }
        },
    ),
    TinyModel(
        "tiny-llama-rope-linear",
        qtype=QType.F16,
        overrides={"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    TinyModel("tiny-qwen2", "qwen2", overrides={"tie_word_embeddings": False}, chat_template=CHAT_TEMPLATE),
    TinyModel("tiny-qwen3", "qwen3", overrides={"head_dim": 32}, chat_template=CHAT_TEMPLATE),
    TinyModel("tiny-llama-bf16", qtype=QType.BF16),
    TinyModel("tiny-llama-q4_0", qtype=QType.Q4_0),
    TinyModel("tiny-llama-q4_1", qtype=QType.Q4_1, qtypes={"token_embd.weight": QType.Q8_0}),
    TinyModel("tiny-llama-q5_0", qtype=QType.Q5_0),
    TinyModel("tiny-llama-q5_1", qtype=QType.Q5_1),
    TinyModel("tiny-llama-q8_0", qtype=QType.Q8_0),
    TinyModel("tiny-llama-k", overrides=K_SHAPE, qtypes=K_QUANTS, output_gain=0.5),
]


def make_config(tiny: TinyModel) -> Any:
    """The transformers config of a tiny model: 2 layers, 4 heads on 2 key/value heads."""
    config_class, _ = CLASSES[tiny.arch]
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6 if tiny.arch.startswith("qwen") else 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return config_class(**{**sizes, **tiny.overrides}, attn_implementation="eager")


def head_dim(config: Any) -> int:
    """Width of one head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def gguf_names(model: PreTrainedModel) -> dict[str, str]:
    """GGUF name → transformers name of every weight; a tied output matrix is left out."""
    parameters = dict(model.named_parameters())  # lists a shared tensor once
    names = {gguf_name: name for gguf_name, name in TOP_TENSORS.items() if name in parameters}
    for layer in range(model.config.num_hidden_layers):
        for part, name in {**LAYER_TENSORS, **EXTRA_LAYER_TENSORS}.items():
            if f"model.layers.{layer}.{name}" in parameters:
                names[f"blk.{layer}.{part}"] = f"model.layers.{layer}.{name}"
    assert set(names.values()) == set(parameters)
    return names


def random_weight(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Weights that give attention something to choose and logits a spread of a few units."""
    noise = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("norm.weight"):
        return 1 + 0.2 * noise
    if name.endswith(".bias"):
        return 0.5 * noise
    if name in TOP_TENSORS:
        return 3.2 / math.sqrt(shape[1]) * noise
    return GAINS.get(name.split(".", 2)[-1], 1.0) / math.sqrt(shape[1]) * noise


def random_k_blocks(qtype: QType, shape: tuple[int, int], std: float, rng: np.random.Generator) -> np.ndarray:
    """Rows of K-quant blocks: every byte random but the fp16 scales, which give about the wanted `std`.

    Q4_K and Q5_K hold d·scale·q − dmin·min with 6-bit scale and min, so dmin/d = mean q centres them.
    Q6_K holds d·scale·(q − 32) with a signed 8-bit scale; its d is subnormal in fp16 here.
    """
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // elements, size), np.uint8)
    spread = rng.uniform(0.7, 1.3, len(blocks))
    mean_q = {QType.Q4_K: 7.5, QType.Q5_K: 15.5}
    if qtype == QType.Q6_K:
        blocks[:, -2:] = (spread * std / 1370).astype("<f2").view(np.uint8).reshape(-1, 2)
    else:
        d = spread * std / (27 * mean_q[qtype])
        scales = np.stack([d, d * mean_q[qtype]], axis=1).astype("<f2")
        blocks[:, :4] = scales.view(np.uint8).reshape(-1, 4)
    return blocks.reshape(shape[0], -1)


def stored_tensors(
    tiny: TinyModel, model: PreTrainedModel, rng: np.random.Generator
) -> dict[str, tuple[np.ndarray, QType]]:
    """Random weights in the file's row order and the types they are stored in."""
    parameters = dict(model.named_parameters())
    stored = {}
    for name, hf_name in gguf_names(model).items():
        shape = tuple(parameters[hf_name].shape)
        weight, qtype = random_weight(name, shape, rng), tiny.qtype_of(name, len(shape))
        if name == "output_norm.weight":
            weight = (weight * tiny.output_gain).astype(np.float32)
        if qtype in (QType.Q4_K, QType.Q5_K, QType.Q6_K):
            stored[name] = random_k_blocks(qtype, shape, float(weight.std()), rng), qtype
        else:
            stored[name] = gguf.quants.quantize(weight, qtype), qtype
    return stored


def load_stored(model: PreTrainedModel, arch: str, stored: dict[str, tuple[np.ndarray, QType]]) -> None:
    """Put the stored weights, dequantised, into the transformers model."""
    config = model.config
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads}
    parameters = dict(model.named_parameters())
    for name, hf_name in gguf_names(model).items():
        weight = gguf.quants.dequantize(*stored[name]).astype(np.float32)
        part = name.split(".", 2)[-1]
        if arch == "llama" and part in heads:  # llama.cpp rotates pairs (2i, 2i+1) for this architecture
            weight = unpermute(weight, heads[part])
        with torch.no_grad():
            parameters[hf_name].copy_(torch.from_numpy(np.ascontiguousarray(weight)))


def rope_factors(config: Any) -> np.ndarray:
    """`rope_freqs.weight`: what each of the head_dim/2 default frequencies is divided by (llama 3's rule)."""
    rope, dim = config.rope_parameters, head_dim(config)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(dim // 2):
        turns = LLAMA3_ORIGINAL_CONTEXT * rope["rope_theta"] ** (-2 * i / dim) / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def tiny_tokenizer() -> tuple[list[str], list[str]]:
    """Vocabulary (3 control tokens, 256 bytes, merged tokens) and merges, trained on a paragraph."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([LONG_PROMPT], trainer)
    vocab = tokenizer.get_vocab()
    merges = [" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = [*CONTROL_TOKENS, *sorted(vocab, key=vocab.__getitem__)]
    assert len(tokens) == VOCAB_SIZE
    return tokens, merges


def add_hyperparameters(writer: gguf.GGUFWriter, tiny: TinyModel, config: Any) -> None:
    """Metadata keys as llama.cpp's converter writes them for each architecture."""
    writer.add_name(tiny.name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if tiny.arch == "llama":  # files of the other two have neither key
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim(config))
    if tiny.arch == "qwen3":
        writer.add_key_length(head_dim(config))
        writer.add_value_length(head_dim(config))
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    elif config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config))


def add_tokenizer(writer: gguf.GGUFWriter, tiny: TinyModel) -> None:
    """The byte-level BPE vocabulary, with `<|im_start|>` as BOS and `<|im_end|>` as EOS."""
    tokens, merges = tiny_tokenizer()
    types = [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
    types += [gguf.TokenType.NORMAL] * (len(tokens) - len(types))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if tiny.arch == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    if tiny.chat_template is not None:
        writer.add_chat_template(tiny.chat_template)


def make_model(tiny: TinyModel, seed: int) -> tuple[PreTrainedModel, np.random.Generator]:
    """Write one model's file; return the transformers model that holds the same weights."""
    rng = np.random.default_rng(seed)
    _, model_class = CLASSES[tiny.arch]
    model = model_class(make_config(tiny)).to(torch.float32).eval()
    stored = stored_tensors(tiny, model, rng)
    load_stored(model, tiny.arch, stored)
    writer = gguf.GGUFWriter(FIXTURES / f"{tiny.name}.gguf", tiny.arch)
    add_hyperparameters(writer, tiny, model.config)
    add_tokenizer(writer, tiny)
    for name, (data, qtype) in stored.items():
        writer.add_tensor(name, data, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, rng


def check_rope(model: PreTrainedModel) -> None:
    """Fail unless the file's own description of RoPE gives transformers' frequencies."""
    rope, dim = model.config.rope_parameters, head_dim(model.config)
    expected = rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    if rope["rope_type"] == "linear":
        expected = expected / rope["factor"]
    elif rope["rope_type"] == "llama3":
        factors = rope_factors(model.config)
        assert {1.0, rope["factor"]} < set(factors.tolist()), "all three branches of the rule are used"
        expected = expected / factors
    np.testing.assert_allclose(model.model.rotary_emb.inv_freq.numpy(), expected, rtol=1e-6)


def check_against_transformers_loader(tiny: TinyModel, model: PreTrainedModel) -> None:
    """Fail unless transformers' own GGUF loader reads the same weights from the file."""
    loaded = AutoModelForCausalLM.from_pretrained(
        FIXTURES, gguf_file=f"{tiny.name}.gguf", dtype=torch.float32
    )
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), (tiny.name, name)
    assert head_dim(loaded.config) == head_dim(model.config)
    assert loaded.config.rms_norm_eps == np.float32(model.config.rms_norm_eps)


def main() -> None:
    """Write all models and their logits."""
    torch.set_num_threads(1)
    FIXTURES.mkdir(exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for seed, tiny in enumerate(MODELS):
        model, rng = make_model(tiny, seed)
        check_rope(model)
        if tiny.arch != "qwen3":  # its loader takes head_dim 128 whatever the file's key_length says
            check_against_transformers_loader(tiny, model)
        for length in SEQUENCE_LENGTHS:
            ids = rng.integers(0, VOCAB_SIZE, length)
            with torch.inference_mode():
                logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
            arrays[f"{tiny.name}.ids_{length}"] = ids.astype(np.int32)
            arrays[f"{tiny.name}.logits_{length}"] = logits.astype(np.float32)
        size = (FIXTURES / f"{tiny.name}.gguf").stat().st_size
        best = np.sort(logits, axis=-1)
        sys.stdout.write(
            f"{tiny.name}: {size} bytes, logits std {logits.std():.2f}, max |logit| {abs(logits).max():.1f}, "
            f"median margin {np.median(best[:, -1] - best[:, -2]):.2f}\n"
        )
    np.savez_compressed(FIXTURES / "tiny-logits.npz", **arrays)


if __name__ == "__main__":
    main()
