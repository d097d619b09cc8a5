"""Reading whole GGUF files: hand-built ones and those of the gguf package's writer."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.errors import EngineError, ModelFileError
from ridgeline.formats.gguf import open_gguf

STRING, ARRAY = 8, 9
# Value type id → smallest and largest value.
INTEGERS = {
    0: (0, 2**8 - 1),
    1: (-(2**7), 2**7 - 1),
    2: (0, 2**16 - 1),
    3: (-(2**15), 2**15 - 1),
    4: (0, 2**32 - 1),
    5: (-(2**31), 2**31 - 1),
    10: (0, 2**64 - 1),
    11: (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("value_type", sorted(INTEGERS))
def test_integers_of_every_width(new_gguf, write, value_type, version):
    low, high = INTEGERS[value_type]
    made = new_gguf(version=version).add("low", value_type, low).add("high", value_type, high)
    made.add("all", ARRAY, (value_type, [low, 0, 1, high]))
    with open_gguf(write(made.build())) as file:
        assert file.version == version
        assert file.metadata == {"low": low, "high": high, "all": [low, 0, 1, high]}
        assert all(type(each) is int for each in file.metadata["all"])


def test_floats_keep_their_bits(new_gguf, write):
    made = (
        new_gguf().add("f32", 6, 0.1).add("f64", 12, 0.1).add("many", ARRAY, (6, [0.1, -0.0, float("inf")]))
    )
    with open_gguf(write(made.build())) as file:
        assert file.metadata["f32"] == struct.unpack("<f", struct.pack("<f", 0.1))[0]
        assert file.metadata["f64"] == 0.1
        assert struct.pack("<3f", *file.metadata["many"]) == struct.pack("<3f", 0.1, -0.0, float("inf"))


def test_bools_are_bools(new_gguf, write):
    made = new_gguf().add("yes", 7, True).add("no", 7, False).add("many", ARRAY, (7, [True, False]))
    with open_gguf(write(made.build())) as file:
        assert file.metadata == {"yes": True, "no": False, "many": [True, False]}
        assert file.metadata["yes"] is True
        assert file.metadata["many"][1] is False


def test_strings(new_gguf, write):
    texts = ["", "plain", "é🦙 日本 🇫🇷 ﷽", "nul\0inside", "x" * 5000]
    made = new_gguf().add("many", ARRAY, (STRING, texts))
    for index, text in enumerate(texts):
        made.add(f"text.{index}", STRING, text)
    with open_gguf(write(made.build())) as file:
        assert file.metadata["many"] == texts
        assert [file.metadata[f"text.{index}"] for index in range(len(texts))] == texts


def test_arrays_of_arrays(new_gguf, write):
    made = new_gguf().add(
        "nested", ARRAY, (ARRAY, [(4, [1, 2]), (STRING, ["a", "b"]), (ARRAY, [(7, [True])])])
    )
    made.add("empty", ARRAY, (5, [])).add("empties", ARRAY, (ARRAY, [(8, []), (9, [])])).add("after", 0, 9)
    with open_gguf(write(made.build())) as file:
        assert file.metadata["nested"] == [[1, 2], ["a", "b"], [[True]]]
        assert file.metadata["empty"] == []
        assert file.metadata["empties"] == [[], []]
        assert file.metadata["after"] == 9


def scalars(value_type):
    if value_type == STRING:
        return st.text(max_size=8)
    if value_type == 7:
        return st.booleans()
    if value_type in (6, 12):
        return st.floats(width=32 if value_type == 6 else 64, allow_nan=False)
    return st.integers(*INTEGERS[value_type])


scalar_types = st.sampled_from([*INTEGERS, 6, 7, STRING, 12])
flat_arrays = scalar_types.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(scalars(kind), max_size=5)))
arrays = st.recursive(
    flat_arrays, lambda inner: st.tuples(st.just(ARRAY), st.lists(inner, max_size=3)), max_leaves=6
)


def plain(value_type, value):
    return [plain(value[0], each) for each in value[1]] if value_type == ARRAY else value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(
        st.text(min_size=1, max_size=12),
        scalar_types.flatmap(lambda kind: st.tuples(st.just(kind), scalars(kind)))
        | st.tuples(st.just(ARRAY), arrays),
        max_size=6,
    )
)
def test_any_metadata_comes_back(new_gguf, write, values):
    made = new_gguf()
    for key, (value_type, value) in values.items():
        made.add(key, value_type, value)
    with open_gguf(write(made.build())) as file:
        assert file.metadata == {key: plain(*typed) for key, typed in values.items()}
        assert list(file.metadata) == list(values)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096])
def test_tensors_at_every_alignment(new_gguf, write, alignment, version):
    made = new_gguf(version=version, alignment=alignment).add("general.alignment", 4, alignment)
    contents = {"one": bytes(range(34)), "two": bytes(range(100, 140)), "three": b"\1\2\3\4"}
    made.add_tensor("one", (32,), 8, contents["one"]).add_tensor("two", (2, 5), 0, contents["two"])
    made.add_tensor("three", (1, 2, 1, 1), 30, contents["three"])
    with open_gguf(write(made.build())) as file:
        assert file.alignment == alignment
        assert {name: info.shape for name, info in file.tensors.items()} == {
            "one": (32,),
            "two": (5, 2),
            "three": (1, 1, 2, 1),
        }
        assert [info.quant_type.name for info in file.tensors.values()] == ["Q8_0", "F32", "BF16"]
        for name, content in contents.items():
            assert bytes(file.tensor_data(name)) == content
            assert file.tensors[name].size_bytes == len(content)
            assert file.tensors[name].offset % alignment == 0
        assert file.tensors["one"].offset == made.data_at


@pytest.mark.parametrize("value_type", [0, 4, 5, 10, 11])
def test_alignment_of_any_integer_type(new_gguf, write, value_type):
    made = new_gguf(alignment=64).add("general.alignment", value_type, 64).add_tensor("x", (1,), 0, b"abcd")
    with open_gguf(write(made.build())) as file:
        assert file.alignment == 64
        assert bytes(file.tensor_data("x")) == b"abcd"


def test_no_alignment_means_32(new_gguf, write):
    with open_gguf(write(new_gguf().add_tensor("x", (1,), 0, b"abcd").build())) as file:
        assert file.alignment == 32
        assert bytes(file.tensor_data("x")) == b"abcd"


def test_rows_not_whole_tensors_are_quant_blocks(new_gguf, write):
    with open_gguf(write(new_gguf().add_tensor("x", (32, 3), 2, bytes(54)).build())) as file:
        assert file.tensors["x"].shape == (3, 32)
        assert file.tensors["x"].size_bytes == 54


def test_a_file_may_hold_metadata_alone_and_trail_bytes(new_gguf, write):
    made = new_gguf().add("a", 0, 1)
    with open_gguf(write(made.build()[: made.tensor_table_at])) as file:
        assert dict(file.tensors) == {}
        assert file.metadata == {"a": 1}
    with open_gguf(write(new_gguf().build() + b"trailing")) as file:
        assert file.metadata == {}


def test_the_data_may_come_in_any_order(new_gguf, write):
    made = new_gguf().add_tensor("late", (8,), 0, bytes(32), offset=32)
    made.add_tensor("early", (1,), 0, b"abcd" * 8, offset=0)
    with open_gguf(write(made.build())) as file:
        assert list(file.tensors) == ["late", "early"]
        assert file.tensors["late"].offset == file.tensors["early"].offset + 32


def test_the_hand_built_file_is_what_the_gguf_package_reads(small_gguf, write):
    path = write(small_gguf.build())
    oracle = gguf.GGUFReader(path)
    with open_gguf(path) as file:
        assert [(each.name, each.data_offset, each.n_bytes) for each in oracle.tensors] == [
            (each.name, each.offset, each.size_bytes) for each in file.tensors.values()
        ]
        for each in oracle.tensors:
            assert bytes(file.tensor_data(each.name)) == each.data.tobytes()
            assert file.tensors[each.name].shape == tuple(reversed(each.shape.tolist()))
        for key in ("general.architecture", "tokenizer.ggml.tokens", "array.11", "scalar.6"):
            assert file.metadata[key] == oracle.fields[key].contents()


@pytest.mark.parametrize("alignment", [32, 64])
def test_files_of_the_gguf_package_s_writer(tmp_path, alignment):
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_custom_alignment(alignment)
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.25)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "é🦙")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("strings", ["Ġthe", "日本"])
    writer.add_array("arrays", [[1, 2], [3]])
    rows = np.arange(192, dtype=np.float32).reshape(3, 64)
    writer.add_tensor("f32.weight", rows)
    quantised = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as file:
        assert file.metadata == {
            "general.architecture": "qwen2",
            "general.alignment": alignment,
            "u8": 255,
            "i8": -128,
            "u16": 65535,
            "i16": -32768,
            "u32": 2**32 - 1,
            "i32": -(2**31),
            "u64": 2**64 - 1,
            "i64": -(2**63),
            "f32": 0.25,
            "f64": 0.1,
            "bool": True,
            "string": "é🦙",
            "ints": [1, -2, 3],
            "strings": ["Ġthe", "日本"],
            "arrays": [[1, 2], [3]],
        }
        assert file.tensors["f32.weight"].shape == (3, 64)
        assert file.tensors["q8.weight"].shape == (3, 64)
        assert file.tensor_data("f32.weight").tobytes() == rows.tobytes()
        assert file.tensor_data("q8.weight").tobytes() == quantised.tobytes()


def test_tensor_data_is_a_read_only_view(small_gguf, write):
    with open_gguf(str(write(small_gguf.build()))) as file:
        view = file.tensor_data("output_norm.weight")
        assert view.readonly
        assert view.nbytes == 20
        assert np.frombuffer(view, np.float32).tolist() == [1, 2, 3, 4, 5]
        assert view.obj is file.tensor_data("token_embd.weight").obj
        view.release()


def test_metadata_and_tensors_can_not_be_changed(small_gguf, write):
    with open_gguf(write(small_gguf.build())) as file:
        with pytest.raises(TypeError):
            file.metadata["general.architecture"] = "other"
        with pytest.raises(TypeError):
            del file.tensors["output_norm.weight"]


def test_a_missing_tensor_is_named(small_gguf, write):
    path = write(small_gguf.build())
    with (
        open_gguf(path) as file,
        pytest.raises(ModelFileError, match=r"tensor 'output\.weight' is missing") as caught,
    ):
        file.tensor_data("output.weight")
    assert caught.value.path == path


def test_close_gives_the_mapping_back_and_may_be_repeated(small_gguf, write, num_open_files):
    before = num_open_files()
    file = open_gguf(write(small_gguf.build()))
    assert num_open_files() == before + 1
    file.close()
    file.close()
    assert num_open_files() == before
    assert file.metadata["general.architecture"] == "llama"
    with pytest.raises(EngineError, match="is closed"):
        file.tensor_data("output_norm.weight")


def test_views_outlive_close_and_the_last_one_unmaps(small_gguf, write, num_open_files):
    before = num_open_files()
    with open_gguf(write(small_gguf.build())) as file:
        weights = np.frombuffer(file.tensor_data("output_norm.weight"), np.float32)
    assert weights.tolist() == [1, 2, 3, 4, 5]
    assert num_open_files() == before + 1
    del weights
    assert num_open_files() == before
