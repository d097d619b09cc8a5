"""Pre-tokenisers: how a byte-level vocabulary cuts text into words before it merges bytes.

A GGUF file names its own in `tokenizer.ggml.pre`. The names are llama.cpp's; the patterns are those the
models' own `tokenizer.json` files state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD_OR_SYMBOLS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_TRIPLE_DIGITS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_WORD_OR_SYMBOLS}"
_SINGLE_DIGITS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_WORD_OR_SYMBOLS}"
_WITH_MARKS = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """One row of the table.

    `patterns` split one after another, every match and every gap a word of its own; empty means GPT-2's
    own rule, after single digits are split off where `splits_digits`. `ignores_merges`: a word that is
    itself a token is taken whole. `is_nfc`: text is NFC-normalised first. `adds_bos`: raw prompts get
    BOS when the file doesn't say.
    """

    patterns: tuple[str, ...] = ()
    splits_digits: bool = False
    ignores_merges: bool = False
    is_nfc: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The `tokenizers` object that splits and spells words in the byte alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        if self.splits_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.patterns))
        return pre_tokenizers.Sequence(steps)

    def build_normalizer(self) -> normalizers.Normalizer | None:
        """What the text passes before it is split; None leaves it as it is."""
        return normalizers.NFC() if self.is_nfc else None


_GPT2 = PreTokenizer()
_DIGITS = PreTokenizer(splits_digits=True)
_LLAMA3 = PreTokenizer(patterns=(_TRIPLE_DIGITS,), ignores_merges=True, adds_bos=True)
_LLAMA3_MERGED = PreTokenizer(patterns=(_TRIPLE_DIGITS,))
_QWEN2_AS_IS = PreTokenizer(patterns=(_SINGLE_DIGITS,))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": _GPT2,
        "gpt-2": _GPT2,
        "olmo": _GPT2,
        "mpt": _GPT2,
        "phi-2": _GPT2,
        "jais": _GPT2,
        "smollm": _DIGITS,
        "starcoder": _DIGITS,
        "refact": _DIGITS,
        "command-r": _DIGITS,
        "codeshell": _DIGITS,
        "exaone": _DIGITS,
        "minerva-7b": _DIGITS,
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "falcon3": _LLAMA3,
        "pixtral": _LLAMA3,
        "smaug-bpe": _LLAMA3_MERGED,
        "dbrx": _LLAMA3_MERGED,
        "glm4": _LLAMA3_MERGED,
        "chatglm-bpe": _LLAMA3_MERGED,
        "qwen2": PreTokenizer(patterns=(_SINGLE_DIGITS,), is_nfc=True),
        "qwen35": PreTokenizer(patterns=(_WITH_MARKS,), is_nfc=True),
        "deepseek-r1-qwen": _QWEN2_AS_IS,
        "stablelm2": _QWEN2_AS_IS,
        "deepseek-v3": PreTokenizer(patterns=_DEEPSEEK_V3),
        "deepseek-coder": PreTokenizer(patterns=_DEEPSEEK_CODER),
        "tekken": PreTokenizer(patterns=(_BY_CASE,), ignores_merges=True, adds_bos=True),
    }
)
"""`tokenizer.ggml.pre` → how text is cut; `default` (and no name at all) is GPT-2's rule."""
