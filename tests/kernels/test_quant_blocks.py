from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels import _native


def test_native_block_sizes_are_those_of_the_formats_table():
    table = {(t.type_id, t.name, t.quant_block_size, t.type_size) for t in QUANT_TYPES.values()}
    assert set(_native.quant_types()) == table
