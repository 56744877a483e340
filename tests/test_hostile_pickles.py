"""Reading a pickle must take time and memory in proportion to its size, and must change nothing but its result."""

from __future__ import annotations

import pickle
import pickletools
import time
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from bitsparse._check import shown
from bitsparse.datasets import planetoid
from bitsparse.datasets.planetoid import safe_load

#: ``x = (x, x)`` forty times over: a trillion elements for code that walks through it.
DOUBLED = b")" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(40))
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
FLOATS = b"cnumpy\ndtype\n(U\x02f8K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
MATRIX = b"ccopy_reg\n_reconstructor\n(cscipy.sparse.csr\ncsr_matrix\nc__builtin__\nobject\nNtR"
VECTOR = ARRAY + b"(K\x01K\x00\x85" + FLOATS + b"\x89U\x00tb"


@pytest.mark.parametrize(
    "content",
    [
        ARRAY + b"(K\x01" + DOUBLED + FLOATS + b"\x89U\x00tb.",
        b"cnumpy\ndtype\n(" + DOUBLED + b"K\x00K\x01tR.",
        MATRIX
        + b"}(U\x04data"
        + VECTOR
        + b"U\x07indices"
        + VECTOR
        + b"U\x06indptr"
        + VECTOR
        + b"U\x06_shape"
        + DOUBLED
        + b"ub.",
        b"}" + DOUBLED + b"K\x01s.",
        b"}(" + DOUBLED + b"K\x01u.",
        b"(" + DOUBLED + b"K\x01d.",
        b"c__builtin__\ndict\n(]" + DOUBLED + b"K\x01\x86atR.",
    ],
    ids=["shape of an array", "dtype", "shape of a matrix", "key", "keys", "keys of a new dict", "keys of a call"],
)
def test_tuples_of_a_trillion_elements_are_refused_at_once(content):
    assert len(content) < 800
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"shape|dtype|keys|names") as raised:
        safe_load(content)
    assert len(str(raised.value)) < 400
    assert time.perf_counter() - start < 5


def test_a_memo_entry_is_not_copied_a_million_times():
    text = b"X" + (100_000).to_bytes(4, "little") + b"a" * 100_000 + b"q\x00"
    raw = b"(K\x01J" + (12_500).to_bytes(4, "little") + b"\x85" + FLOATS + b"\x89h\x00tb0"
    for copies in (b"c_codecs\nencode\n(h\x00U\x06latin1tR0", ARRAY + raw):
        tracemalloc.start()
        with pytest.raises(ValueError, match="far more memory than the file has bytes"):
            safe_load(text + copies * 5000 + b".")
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
        tracemalloc.stop()
    with pytest.raises(ValueError, match="a list from something else"):
        safe_load(b"c__builtin__\nlist\n(U\x03abctR.")


def test_no_attribute_of_ours_is_written():
    before = planetoid._encode.__defaults__, dict(planetoid._encode.__dict__)
    with pytest.raises(ValueError, match="sets attributes of something else"):
        safe_load(b"c_codecs\nencode\nN}U\x0c__defaults__Ns\x86b.")
    with pytest.raises(ValueError, match="sets attributes of something else"):
        safe_load(b"c_codecs\nencode\n}U\x04mineK\x01sb.")
    assert (planetoid._encode.__defaults__, dict(planetoid._encode.__dict__)) == before


#: Instructions that no Planetoid file needs, with arguments with which Python's own unpickler would run them.
REFUSED = {
    "EXT1": b"\x82\x01.", "EXT2": b"\x83\x01\x00.", "EXT4": b"\x84\x01\x00\x00\x00.", "PERSID": b"Px\n.", "BINPERSID": b"NQ.",
    "INST": b"(ibuiltins\nobject\n.", "OBJ": b"(cnumpy\nndarray\no.", "NEWOBJ_EX": b"cnumpy\nndarray\n)}\x92.", "DUP": b"N2.",
    "EMPTY_SET": b"\x8f.", "ADDITEMS": b"](K\x01\x90.", "FROZENSET": b"(K\x01\x91.", "NEXT_BUFFER": b"\x97.",
    "READONLY_BUFFER": b"C\x00\x98.", "BYTEARRAY8": b"\x96" + bytes(8) + b".",
}  # fmt: skip


def test_instructions_that_are_not_needed_are_refused_by_name():
    assert set(REFUSED) | planetoid._OPCODES == {op.name for op in pickletools.opcodes}
    assert not set(REFUSED) & planetoid._OPCODES
    for name, content in REFUSED.items():
        with pytest.raises(ValueError, match=f"uses the pickle instruction {name},"):
            safe_load(content)


@given(
    st.recursive(
        st.none() | st.integers(-(2**100), 2**100) | st.text() | st.binary(),
        lambda e: st.lists(e) | st.tuples(e, e),
        max_leaves=30,
    )
)
@settings(max_examples=100)
def test_what_is_shown_is_bounded_and_short_values_are_shown_whole(value):
    text = shown(value)
    assert len(text) <= 240
    if isinstance(value, (type(None), int)) or (isinstance(value, (str, bytes)) and len(repr(value)) < 60):
        assert text == repr(value)
    for _ in range(50):
        value = [value, {"a": value}]
    assert len(shown(value)) <= 240


def test_pickles_of_plain_data_are_still_read():
    for value in ({1: [2, 3], "a": (1.5, None)}, [b"abc", "text", 2**80]):
        for protocol in range(6):
            if not (protocol == 0 and b"bytes" in pickle.dumps(value, protocol=0)):
                assert safe_load(pickle.dumps(value, protocol=protocol)) == value
