"""Broken GGUF files: each a ModelFileError that says what is wrong, where, and what to do."""

import os
import struct
import tracemalloc

import pytest

from ridgeline.errors import ModelFileError
from ridgeline.formats.gguf import open_gguf

STRING, ARRAY = 8, 9


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def header(*, magic=b"GGUF", version=3, num_tensors=0, num_entries=0):
    return magic + struct.pack("<IQQ", version, num_tensors, num_entries)


# Half a download: the file ends too soon.


@pytest.mark.parametrize(
    ("length", "problem"),
    [
        (0, "the file is empty (0 bytes)"),
        (3, "truncated: 3 bytes are too few for any model file"),
        (4, "truncated: the header at byte 0 needs 24 bytes, but only 4 are left of the file's 4"),
        (23, "truncated: the header at byte 0 needs 24 bytes, but only 23 are left of the file's 23"),
    ],
)
def test_cut_in_the_header(small_gguf, refused, length, problem):
    error = refused(small_gguf.build()[:length])
    assert error.problem == problem
    assert "ridgeline pull" in error.remedy


def test_cut_at_100_bytes(small_gguf, refused):
    error = refused(small_gguf.build()[:100])
    assert error.problem.startswith("truncated: the table of 26 metadata entries at byte 24 needs")
    assert "of the file's 100" in error.problem


def test_cut_in_a_string_of_the_metadata(small_gguf, refused):
    whole = small_gguf.build()
    error = refused(whole[: whole.index("Ġtoken37".encode()) + 4])
    assert "truncated: string 37 of metadata key 'tokenizer.ggml.tokens' at byte" in error.problem


def test_cut_between_metadata_entries(small_gguf, refused):
    whole = small_gguf.build()
    error = refused(whole[: whole.index(b"nested") - 8])
    assert "truncated: the length of metadata key 25 at byte" in error.problem


def test_cut_in_the_tensor_table(small_gguf, refused):
    whole = small_gguf.build()
    error = refused(whole[: whole.index(b"output_norm.weight") + 30])
    assert "truncated" in error.problem
    assert "tensor 'output_norm.weight'" in error.problem
    assert "ridgeline pull" in error.remedy


def test_cut_one_byte_before_the_end(small_gguf, refused):
    whole = small_gguf.build()
    error = refused(whole[:-1])
    assert error.problem == (
        f"truncated: tensor 'output_norm.weight' at byte {len(whole) - 20:,} needs 20 bytes, "
        f"but only 19 are left of the file's {len(whole) - 1:,}"
    )


def test_cut_before_the_first_tensor(small_gguf, refused):
    whole = small_gguf.build()
    error = refused(whole[: small_gguf.data_at])
    assert "truncated: tensor 'token_embd.weight' at byte" in error.problem
    assert "only 0 are left" in error.problem


def test_every_cut_is_refused(small_gguf, refused):
    whole = small_gguf.build()
    for length in range(0, len(whole), 5):
        assert refused(whole[:length]).problem.startswith(("truncated", "the file is empty"))


# Something else, or a version that can't be read.


@pytest.mark.parametrize(
    ("content", "problem", "remedy"),
    [
        (header(magic=b"GGML", version=1), "a GGML file from before GGUF (it begins with b'GGML')", "GGUF"),
        (b"lmgg" + bytes(60), "a GGML file from before GGUF", "convert"),
        (b"tjgg" + u32(3) + bytes(60), "a GGML file from before GGUF", "convert"),
        (u64(40) + b'{"__metadata__":{"format":"pt"}}' + bytes(99), "a safetensors file", "convert"),
        (b"PK\x03\x04" + bytes(60), "a zip archive, perhaps a PyTorch checkpoint", "convert"),
        (b"\x1f\x8b\x08" + bytes(60), "a gzip archive", "unpack"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "a web page", "ridgeline pull"),
        (b"\n  <HTML><head>", "a web page", "ridgeline pull"),
        (b'{"error": "Repository not found"}', "JSON text, perhaps a server's error", "ridgeline pull"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n",
            "a git-lfs pointer",
            "git lfs pull",
        ),
        (bytes(4096), "zeros: the download never filled it", "ridgeline pull"),
        (b"MZ\x90\x00" + bytes(60), "it begins with b'MZ\\x90\\x00' instead of b'GGUF'", "ridgeline pull"),
        (b"gguf" + header()[4:], "it begins with b'gguf'", "ridgeline pull"),
    ],
)
def test_another_kind_of_file_is_named(refused, content, problem, remedy):
    error = refused(content)
    assert error.problem.startswith("not a GGUF file")
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize("version", [0, 1, 4, 99, 2**32 - 1])
def test_unsupported_versions(refused, version):
    error = refused(header(version=version))
    assert error.problem == f"GGUF version {version} at byte 4 is not supported, only 2 and 3 are"
    assert "GGUF version 3" in error.remedy


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_files_are_recognised(refused, version):
    error = refused(b"GGUF" + struct.pack(">IQQ", version, 0, 0))
    assert error.problem.startswith(
        f"big-endian GGUF (the bytes of version {version}, at byte 4, are swapped)"
    )
    assert "little-endian" in error.remedy


# Counts and lengths that can't be.


def test_absurd_number_of_tensors(refused):
    error = refused(header(num_tensors=2**63))
    assert "corrupt: the number of tensors at byte 8 is 9,223,372,036,854,775,808" in error.problem


def test_absurd_number_of_metadata_entries(refused):
    error = refused(header(num_entries=2**64 - 1))
    assert "corrupt: the number of metadata entries at byte 16 is 18,446,744,073,709,551,615" in error.problem


def test_more_tensors_than_bytes(refused):
    error = refused(header(num_tensors=1000) + bytes(100))
    assert (
        "truncated: the table of 1,000 tensors at byte 24 needs 33,000 bytes, but only 100" in error.problem
    )


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**50])
def test_absurd_string_length(refused, length):
    entry = u64(1) + b"k" + u32(STRING) + u64(length) + bytes(20)
    error = refused(header(num_entries=1) + entry)
    assert error.problem.startswith("corrupt: string 0 of metadata key 'k' at byte 45 needs")
    assert f"{length:,}" in error.problem


def test_string_longer_than_the_file(refused):
    error = refused(header(num_entries=1) + u64(1) + b"k" + u32(STRING) + u64(21) + bytes(20))
    assert "truncated: string 0 of metadata key 'k' at byte 45 needs 21 bytes, but only 20" in error.problem


@pytest.mark.parametrize("length", [0, 2**16, 2**63])
def test_key_and_tensor_names_have_a_possible_length(refused, length):
    padded = u64(length) + bytes(200)
    error = refused(header(num_entries=1) + padded)
    assert f"corrupt: metadata key 0 at byte 24 claims {length:,} bytes" in error.problem
    error = refused(header(num_tensors=1) + padded)
    assert f"corrupt: the name of tensor 0 at byte 24 claims {length:,} bytes" in error.problem


@pytest.mark.parametrize("element_type", [0, 1, 2, 3, 4, 5, 6, 7, STRING, ARRAY, 10, 11, 12])
@pytest.mark.parametrize("count", [2**64 - 1, 2**62, 2**32, 1000])
def test_arrays_that_can_not_fit(refused, element_type, count):
    entry = u64(1) + b"k" + u32(ARRAY) + u32(element_type) + u64(count) + bytes(64)
    error = refused(header(num_entries=1) + entry)
    assert f"metadata key 'k', an array of {count:,} at byte 49 needs" in error.problem


def test_arrays_that_fit_and_are_still_absurd(refused):
    entry = u64(1) + b"k" + u32(ARRAY) + u32(0) + u64(2**23) + bytes(2**23)
    error = refused(header(num_entries=1) + entry)
    assert "corrupt: metadata key 'k' at byte 37 is an array of 8,388,608" in error.problem
    entry = u64(1) + b"k" + u32(ARRAY) + u32(ARRAY) + u64(2**17) + bytes(12 * 2**17)
    error = refused(header(num_entries=1) + entry)
    assert "corrupt: metadata key 'k' at byte 37 is an array of 131,072" in error.problem


def test_arrays_nested_too_deep(new_gguf, write, refused):
    value = (0, [1])
    for _ in range(7):
        value = (ARRAY, [value])
    with open_gguf(write(new_gguf().add("k", ARRAY, value).build())) as file:
        assert file.metadata == {"k": [[[[[[[[1]]]]]]]]}
    error = refused(new_gguf().add("k", ARRAY, (ARRAY, [value])).build())
    assert "corrupt: metadata key 'k' nests arrays deeper than 8" in error.problem
    error = refused(header(num_entries=1) + u64(1) + b"k" + u32(ARRAY) + (u32(ARRAY) + u64(1)) * 20_000)
    assert "nests arrays deeper than 8" in error.problem


# Metadata that makes no sense.


@pytest.mark.parametrize("value_type", [13, 255, 2**32 - 1])
def test_unknown_value_types(new_gguf, refused, value_type):
    error = refused(new_gguf().add_packed("k", value_type, bytes(8)).build())
    assert f"corrupt: metadata key 'k' has value type {value_type} before byte 37" in error.problem
    error = refused(new_gguf().add_packed("k", ARRAY, u32(value_type) + u64(0)).build())
    assert f"corrupt: metadata key 'k' has value type {value_type}" in error.problem


def test_a_key_that_is_there_twice(new_gguf, refused):
    error = refused(new_gguf().add("same", 0, 1).add("same", 0, 1).build())
    assert error.problem == "corrupt: metadata key 'same' at byte 41 is there twice"


@pytest.mark.parametrize("packed", [b"\x02", b"\xff"])
def test_a_bool_is_0_or_1(new_gguf, refused, packed):
    error = refused(new_gguf().add_packed("k", 7, packed).build())
    assert "metadata key 'k' at byte 37 holds a bool that is neither 0 nor 1" in error.problem
    error = refused(new_gguf().add_packed("k", ARRAY, u32(7) + u64(2) + b"\x01" + packed).build())
    assert "holds a bool that is neither 0 nor 1" in error.problem


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80"])
def test_text_that_is_not_utf_8(new_gguf, refused, raw):
    error = refused(new_gguf().add("k", STRING, raw).build())
    assert "corrupt: string 0 of metadata key 'k' at byte 45 is not UTF-8" in error.problem
    error = refused(new_gguf().add("k", ARRAY, (STRING, ["fine", raw])).build())
    assert "corrupt: string 1 of metadata key 'k' at byte 69 is not UTF-8" in error.problem
    error = refused(new_gguf().add(raw, 0, 1).build())
    assert "corrupt: metadata key 0 at byte 24 is not UTF-8" in error.problem
    error = refused(new_gguf().add_tensor(raw, (1,), 0, bytes(4)).build())
    assert "corrupt: the name of tensor 0 at byte 24 is not UTF-8" in error.problem


@pytest.mark.parametrize("alignment", [0, 1, 4, 12, 33, 2**17, 2**31, 2**32 - 1])
def test_impossible_alignments(new_gguf, refused, alignment):
    error = refused(new_gguf().add("general.alignment", 4, alignment).build())
    assert f"corrupt: general.alignment={alignment} at byte 53 is no multiple of 8" in error.problem


@pytest.mark.parametrize(("value_type", "value"), [(6, 32.0), (7, True), (STRING, "32"), (ARRAY, (4, [32]))])
def test_alignment_is_an_integer(new_gguf, refused, value_type, value):
    error = refused(new_gguf().add("general.alignment", value_type, value).build())
    assert "corrupt: general.alignment at byte 53 is no integer" in error.problem


def test_names_are_quoted_on_one_short_line(new_gguf, refused):
    name = "a\n\x1b[31m" + "x" * 60_000
    error = refused(new_gguf().add(name, 0, 1).add(name, 0, 1).build())
    assert "'a\\n\\x1b[31mxxx" in error.problem
    assert len(error.problem) < 200


# Tensors that can't be.


def test_two_tensors_of_one_name(new_gguf, refused):
    made = new_gguf().add_tensor("twin", (1,), 0, bytes(4)).add_tensor("twin", (1,), 0, bytes(4))
    assert refused(made.build()).problem == "corrupt: tensor 'twin' at byte 60 is there twice"


@pytest.mark.parametrize(("dims", "which"), [((0,), 0), ((32, 0), 1), ((0, 4), 0), ((32, 2, 0, 1), 2)])
def test_a_dimension_of_zero(new_gguf, refused, dims, which):
    error = refused(new_gguf().add_tensor("flat", dims, 8, bytes(34)).build())
    assert f"corrupt: dimension {which} of tensor 'flat' is 0" in error.problem
    assert "at byte 36" in error.problem


@pytest.mark.parametrize("dims", [(), (1, 1, 1, 1, 1), (1,) * 100])
def test_impossible_numbers_of_dimensions(new_gguf, refused, dims):
    error = refused(new_gguf().add_tensor("many", dims, 0, bytes(4)).build())
    assert f"corrupt: tensor 'many' at byte 36 has {len(dims)} dimensions; 1 to 4" in error.problem


@pytest.mark.parametrize("dims", [(2**63, 2**63, 2**63, 2**63), (2**32, 2**32), (2**62,), (2**64 - 1, 1)])
def test_shapes_whose_product_overflows(new_gguf, refused, dims):
    error = refused(new_gguf().add_tensor("vast", dims, 0, bytes(64)).build())
    assert error.problem.startswith("corrupt: tensor 'vast' at byte")


def test_a_shape_larger_than_the_file(new_gguf, refused):
    error = refused(new_gguf().add_tensor("wide", (17,), 0, bytes(64)).build())
    assert "truncated: tensor 'wide' at byte 64 needs 68 bytes, but only 64" in error.problem


@pytest.mark.parametrize(
    ("type_id", "named"),
    [(16, "IQ2_XXS (type 16)"), (29, "IQ1_M (type 29)"), (26, "I32 (type 26)"), (77, "type 77")],
)
def test_types_that_are_not_supported(new_gguf, refused, type_id, named):
    error = refused(new_gguf().add_tensor("odd", (256,), type_id, bytes(300)).build())
    assert f"tensor 'odd' is stored as {named} at byte 47, which is not supported" in error.problem
    assert "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K" in error.problem


@pytest.mark.parametrize(
    ("type_id", "row", "name", "quant_block"),
    [(8, 33, "Q8_0", 32), (3, 16, "Q4_1", 32), (14, 128, "Q6_K", 256)],
)
def test_rows_are_whole_quant_blocks(new_gguf, refused, type_id, row, name, quant_block):
    error = refused(new_gguf().add_tensor("ragged", (row, 512), type_id, bytes(64)).build())
    assert error.problem == (
        f"corrupt: tensor 'ragged' has rows of {row} elements, no multiple of {name}'s "
        f"quant block of {quant_block}"
    )


@pytest.mark.parametrize("offset", [1, 8, 16, 2**63 + 1])
def test_offsets_are_aligned(new_gguf, refused, offset):
    error = refused(new_gguf().add_tensor("askew", (1,), 0, bytes(64), offset=offset).build())
    assert (
        f"corrupt: the offset {offset:,} of tensor 'askew' (at byte 53) is not aligned to 32" in error.problem
    )


@pytest.mark.parametrize("offset", [64, 2**40, 2**64 - 32])
def test_offsets_beyond_the_end(new_gguf, refused, offset):
    error = refused(new_gguf().add_tensor("lost", (1,), 0, bytes(64), offset=offset).build())
    assert f"tensor 'lost' at byte {64 + offset:,} needs 4 bytes" in error.problem
    assert "only 0 are left" in error.problem


def test_tensors_share_no_bytes(new_gguf, refused):
    made = (
        new_gguf().add_tensor("under", (16,), 0, bytes(64)).add_tensor("over", (1,), 0, bytes(4), offset=32)
    )
    error = refused(made.build())
    assert "corrupt: tensor 'over' at byte" in error.problem
    assert "overlaps tensor 'under', which ends at byte" in error.problem


# Paths that are no readable file.


def test_a_missing_file(tmp_path, refused):
    error = refused(tmp_path / "nowhere.gguf")
    assert error.problem == "no such file"
    assert "ridgeline pull" in error.remedy


def test_a_directory(tmp_path, refused):
    error = refused(tmp_path)
    assert error.problem == "is a directory, not a model file"


def test_a_path_through_a_file(small_gguf, write, refused):
    error = refused(write(small_gguf.build()) / "inner.gguf")
    assert error.problem.startswith("the file can't be opened (")


def test_a_pipe_is_refused_without_waiting(tmp_path, refused):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").problem.startswith("is not a regular file")


def test_an_unreadable_file(small_gguf, write, refused, monkeypatch):
    path = write(small_gguf.build())

    def deny(*_):
        raise PermissionError(13, "Permission denied")

    # Permission bits don't stop a superuser, who may be running this.
    monkeypatch.setattr("pathlib.Path.open", deny)
    assert refused(path).problem == "the file may not be read (permission denied)"


def test_impossible_paths():
    for path in ("nul\0inside.gguf", "x" * 5000):
        with pytest.raises(ModelFileError, match="the file can't be opened"):
            open_gguf(path)


def test_a_refusal_allocates_next_to_nothing(new_gguf, write):
    """16 MB of true strings before the fault: nothing of them may be decoded for it."""
    made = new_gguf().add("texts", ARRAY, (STRING, ["x" * 1024] * 16_384))
    path = write(made.add_packed("broken", STRING, u64(2**63)).build() + bytes(100))
    del made
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
