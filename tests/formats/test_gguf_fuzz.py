"""Mutated files: each opens or raises ModelFileError; nothing else, nothing leaked, nothing large."""

import random
import struct
import tracemalloc

import pytest

from ridgeline.errors import ModelFileError
from ridgeline.formats.gguf import open_gguf

INTERESTING = (
    0,
    1,
    7,
    31,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
MUTATIONS_EACH = 200


def flip_bits(rng, content, header_bytes):
    out = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        out[rng.randrange(header_bytes)] ^= 1 << rng.randrange(8)
    return bytes(out)


def replace_bytes(rng, content, header_bytes):
    out = bytearray(content)
    for _ in range(rng.randint(1, 16)):
        out[rng.randrange(header_bytes)] = rng.randrange(256)
    return bytes(out)


def truncate(rng, content, header_bytes):
    return content[: rng.randrange(len(content))]


def splice_integer(rng, content, header_bytes):
    value = rng.choice([*INTERESTING, rng.getrandbits(64), rng.getrandbits(12), len(content)])
    packed = struct.pack("<Q", value)[: rng.choice([4, 8])]
    at = rng.randrange(4, header_bytes)
    return content[:at] + packed + content[at + len(packed) :]


def delete_a_slice(rng, content, header_bytes):
    at = rng.randrange(4, header_bytes)
    return content[:at] + content[at + rng.randint(1, 24) :]


def repeat_a_slice(rng, content, header_bytes):
    at = rng.randrange(4, header_bytes)
    end = at + rng.randint(1, 200)
    return content[:end] + content[at:end] * rng.randint(1, 3) + content[end:]


def zero_the_rest(rng, content, header_bytes):
    at = rng.randrange(24, header_bytes)
    return content[:at] + bytes(len(content) - at)


def refusal(path):
    """The error that refuses the file; None where it opens and all of it can be read."""
    try:
        with open_gguf(path) as file:
            sizes = {name: len(bytes(file.tensor_data(name))) for name in file.tensors}
            assert sizes == {name: info.size_bytes for name, info in file.tensors.items()}
    except ModelFileError as error:
        return error
    return None


@pytest.mark.parametrize(
    "mutate",
    [flip_bits, replace_bytes, truncate, splice_integer, delete_a_slice, repeat_a_slice, zero_the_rest],
    ids=lambda each: each.__name__,
)
def test_mutated_files_open_or_are_refused(small_gguf, write, num_open_files, mutate):
    content = small_gguf.build()
    header_bytes = small_gguf.data_at
    rng = random.Random(mutate.__name__)
    assert refusal(write(content)) is None
    files_before = num_open_files()
    refusals = []
    tracemalloc.start()
    try:
        for _ in range(MUTATIONS_EACH):
            refusals.append(refusal(write(mutate(rng, content, header_bytes))))
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert num_open_files() == files_before
    errors = [each for each in refusals if each is not None]
    assert len(errors) >= MUTATIONS_EACH // 4
    assert all(str(each).isprintable() and each.remedy for each in errors)


def test_random_bytes_after_a_true_header_are_refused(write, num_open_files):
    rng = random.Random(25)
    files_before = num_open_files()
    for _ in range(100):
        counts = (rng.randint(1, 5), rng.randint(1, 5))
        content = b"GGUF" + struct.pack("<IQQ", rng.choice([2, 3]), *counts) + rng.randbytes(400)
        assert refusal(write(content)) is not None
    assert num_open_files() == files_before
