"""The table of quant types, against the gguf package's."""

import gguf
import pytest

from ridgeline.formats.quants import (
    CONVERTED_TYPES,
    QUANT_TYPES,
    UNSUPPORTED_TYPE_NAMES,
    describe_type_id,
    quant_type_by_id,
)


def test_the_promised_types_are_there():
    promised = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}
    assert set(QUANT_TYPES) == promised
    assert not promised & set(CONVERTED_TYPES)


@pytest.mark.parametrize("name", sorted(QUANT_TYPES | CONVERTED_TYPES))
def test_ids_and_sizes_are_ggml_s(name):
    quant_type = (QUANT_TYPES | CONVERTED_TYPES)[name]
    oracle = gguf.GGMLQuantizationType[name]
    assert quant_type.name == name
    assert quant_type.type_id == oracle.value
    assert (quant_type.quant_block_size, quant_type.type_size) == gguf.GGML_QUANT_SIZES[oracle]
    assert quant_type_by_id(oracle.value) is quant_type
    assert quant_type.size_bytes(512) == 512 // quant_type.quant_block_size * quant_type.type_size
    assert quant_type.size_bytes(0) == 0


@pytest.mark.parametrize("oracle", list(gguf.GGMLQuantizationType), ids=lambda each: each.name)
def test_every_type_that_ggml_names_is_named_in_messages(oracle):
    assert describe_type_id(oracle.value) == f"{oracle.name} (type {oracle.value})"
    assert (oracle.name in QUANT_TYPES | CONVERTED_TYPES) != (oracle.value in UNSUPPORTED_TYPE_NAMES)


def test_an_unknown_id_is_no_type():
    assert quant_type_by_id(99) is None
    assert quant_type_by_id(16) is None
    assert describe_type_id(99) == "type 99"


def test_part_of_a_quant_block_has_no_size():
    with pytest.raises(ValueError, match="33 elements are no multiple of Q8_0's quant block, 32"):
        QUANT_TYPES["Q8_0"].size_bytes(33)
