"""Graphs must be read from text as they are written, whatever the file's line ends, quotes, byte order marks and last bytes."""

from __future__ import annotations

import io

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from scipy.io import mmwrite

import bitsparse as bs
from bitsparse.datasets import read_edges, read_mtx, sources
from bitsparse.datasets.text import _is_node, _is_number, _is_whole


def mtx(header: str, body: str) -> str:
    return f"%%MatrixMarket matrix {header}\n{body}"


def edges_of(graph) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in np.argwhere(graph.adjacency.toarray())]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "g.txt"


# ---- Matrix Market
@pytest.mark.parametrize(
    ("content", "edges"),
    [
        (mtx("coordinate pattern general", "3 3 2\n1 2\n3 1 "), [(0, 1), (2, 0)]),
        (mtx("coordinate pattern general", "3 3 2\n1 2\n3 1"), [(0, 1), (2, 0)]),
        (mtx("coordinate pattern general", "3 3 2\n1 2\n3 1 \t \n \n\n"), [(0, 1), (2, 0)]),
        (mtx("coordinate pattern general", "3 3 2\r\n1 2\r\n3 1\r\n"), [(0, 1), (2, 0)]),
        (mtx("coordinate pattern general", "3 3 2\r1 2\r3 1"), [(0, 1), (2, 0)]),
        (mtx("coordinate pattern general", "3 3 2\n\n 1\t2\n3  1"), [(0, 1), (2, 0)]),
        (mtx("array integer general", "0 0\n"), []),
        (mtx("array integer general", "0 0"), []),
        (mtx("array integer symmetric", "0 0\n"), []),
        (mtx("array real skew-symmetric", "1 1\n"), []),
        (mtx("coordinate integer general", "2 2 0\n"), []),
    ],
)
def test_ends_of_matrix_market_files(file, content, edges):
    file.write_bytes(content.encode())
    assert edges_of(read_mtx(file)) == edges


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (mtx("coordinate pattern general", "3 3 2\n1 2\0\n3 1\n"), r"line 3: .*2.x00. is not a row or column"),
        (mtx("coordinate pattern general", "3 3 2\n1 2\n3 1\0"), r"line 4: .* is not a row or column"),
        (mtx("coordinate pattern general", "3 3 2\n1 2\n3 1 x"), "line 4 holds 3 words, but 2 are needed"),
        (mtx("coordinate pattern general", "3 3 2\n1 2 3 1\n"), "line 3 holds 4 words, but 2 are needed"),
        (mtx("coordinate pattern general", "3 3 1\n1 2\n3 1\n"), "1 entries are announced, but more"),
        (mtx("coordinate real general", "3 3 1\n1 2 1e\n"), "line 3: '1e' is not a number"),
        (mtx("coordinate integer general", "3 3 1\n1 2 1.5\n"), "'1.5' is not a whole number"),
        (mtx("coordinate integer general", "3 3 1\n1 2 " + "9" * 30 + "\n"), "of at most 18 digits"),
        (mtx("array pattern general", "1 1\n1\n"), "no form of Matrix Market"),
        (mtx("array complex general", "0 0\n"), "complex"),
        (mtx("coordinate real hermitian", "0 0 0\n"), "complex"),
        (mtx("coordinate real " + "x" * 900, "1 1 0\n"), "no form of Matrix Market"),
    ],
)
@pytest.mark.parametrize("weights", [False, True])
def test_matrix_market_files_that_are_refused(file, content, message, weights):
    file.write_bytes(content.encode())
    with pytest.raises(bs.FileFormatError, match=message) as raised:
        read_mtx(file, weights=weights)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(("form", "entry"), [("coordinate pattern", "1 1"), ("array integer", "0")])
@pytest.mark.parametrize("end", ["\n", ""])
def test_as_many_entries_as_fit_in_the_bytes_may_be_announced(file, form, entry, end):
    entries = 16
    size = "1 1 16" if "coordinate" in form else "4 4"
    file.write_text(mtx(f"{form} general", size + "\n" + "\n".join([entry] * entries) + end))
    assert read_mtx(file).num_edges == ("coordinate" in form)
    file.write_text(mtx(f"{form} general", size + "\n" + "\n".join([entry] * (entries - 1)) + end))
    with pytest.raises(bs.FileFormatError, match="16 entries are announced, but only"):
        read_mtx(file)


@given(st.data())
@settings(max_examples=120)
def test_matrix_market_files_are_what_scipy_wrote(tmp_path_factory, data):
    draw = data.draw
    n, seed = draw(st.integers(0, 9)), draw(st.integers(0, 1000))
    symmetry = draw(st.sampled_from(["general", "symmetric", "skew-symmetric"]))
    field = draw(st.sampled_from(["real", "integer", "pattern"]))
    dense = draw(st.booleans()) and field != "pattern" and n > 0
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((n, n)) < 0.4, rng.integers(-4, 5, (n, n)) * (0.25 if field == "real" else 1), 0)
    if symmetry != "general":
        values = np.tril(values, 0 if symmetry == "symmetric" else -1)
        values = values + (np.tril(values, -1).T if symmetry == "symmetric" else -values.T)
    if field == "pattern":
        values = (values != 0).astype(float)
        symmetry = "general" if symmetry == "skew-symmetric" else symmetry
    values = values.astype(np.int64) if field == "integer" else values.astype(np.float64)
    stream = io.BytesIO()
    mmwrite(stream, values if dense else sp.coo_array(values), field=field, symmetry=symmetry, precision=17)
    file = tmp_path_factory.mktemp("mtx", numbered=True) / "a.mtx"
    file.write_bytes(stream.getvalue().rstrip() if draw(st.booleans()) else stream.getvalue())
    np.testing.assert_array_equal(read_mtx(file, weights=True).weighted.toarray(), values)
    np.testing.assert_array_equal(read_mtx(file).adjacency.toarray(), values != 0)


# ---- edge lists
@pytest.mark.parametrize(
    "text",
    [
        "\ufeff0 1\n1 2\n",
        "\ufeff# head\n0 1\n1 2\n",
        "\ufefffrom to\n0 1\n1 2",
        "0.0 1.0\n1.0 2.0\n",
        "0 1.\n1e0 2\n",
        '"0","1"\n"1","2"\n',
        "'0'\t'1'\n'1'\t'2'\n",
        '"from";"to"\n"0";"1"\n"1";"2"',
        "0 1\r1 2\r",
        "+0 1\n// 7 8\n1 2",
        "0 1 x\n% a b c\n1 2",
    ],
)
@pytest.mark.filterwarnings("default")
def test_the_first_edge_is_an_edge_however_it_is_written(file, text):
    file.write_bytes(text.encode())
    assert edges_of(read_edges(file)) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    "text", ["0.5 1\n0 1\n", "nodes 5\n0 1\n", "1e400 1\n", "0 1_0\n", "0 1\n0 1.5", "/ 1\n0 1", "\ufeff"]
)
@pytest.mark.filterwarnings("default")
def test_what_is_no_edge_is_refused(file, text):
    file.write_bytes(text.encode())
    with pytest.raises(bs.FileFormatError, match=r"is not a node's number|no edge"):
        read_edges(file)


@pytest.mark.parametrize(
    ("nodes", "error"), [("9", bs.DTypeError), (9.0, bs.DTypeError), (True, bs.DTypeError), (-1, ValueError)]
)
def test_nodes_must_be_an_integer(file, nodes, error):
    file.write_text("0 1\n")
    with pytest.raises(error, match="read_edges: nodes must be"):
        read_edges(file, nodes=nodes)


SEPARATORS = st.sampled_from([" ", "\t", ",", ";", ", ", " ; "])
NUMBERS = st.integers(0, 30)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(1, 9)), min_size=1, max_size=12),
    SEPARATORS,
    st.sampled_from(["{}", '"{}"', "{}.0", "+{}", "'{}'"]),
    st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\n# 7 7 7\n"]),
    st.sampled_from(["", "\ufeff", "source target weight\n", "// 1 2 3\n", "\ufeff\"a\" \"b\" \"c\"\n"]),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=150)
def test_edges_are_those_that_were_written(tmp_path_factory, edges, between, written, end, head, last):
    text = head + end.join(between.join(written.format(word) for word in edge) for edge in edges) + end * last
    file = tmp_path_factory.mktemp("edges", numbered=True) / "e.txt"
    file.write_bytes(text.encode())
    for symmetric in (False, True):
        wanted = np.zeros((31, 31))
        for source, target, weight in edges:
            wanted[source, target] += weight
            wanted[target, source] += weight * (symmetric and source != target)
        graph = read_edges(file, weights=True, nodes=31, symmetric=symmetric)
        np.testing.assert_array_equal(graph.weighted.toarray(), wanted)


def test_mirrored_weights_stand_on_their_own_edges():
    """Self loops must not be mirrored, and the weights of edges behind one must stay with their edges."""
    graph = sources.graph_of_pairs(
        np.array([0, 1, 1]), np.array([0, 2, 0]), 3, "g", weights=np.array([1.0, 2.0, 3.0]), mirrored=1
    )
    np.testing.assert_array_equal(graph.weighted.toarray(), [[1, 3, 0], [3, 0, 2], [0, 2, 0]])


# ---- words
@given(st.text("0123456789+-.eEnaif_x", min_size=1, max_size=24))
def test_words_are_numbers_as_in_python(text):
    for holds, kind in ((_is_whole, int), (_is_number, float), (_is_node, float)):
        try:
            wanted = kind(text)
        except ValueError:
            wanted = None
        if "_" in text or (kind is int and len(text.lstrip("+-")) > 18):
            wanted = None
        if holds is _is_node and wanted is not None and not (abs(wanted) < 2**53 and wanted == int(wanted)):
            wanted = None
        assert holds(text.encode()) == (wanted is not None), text


@pytest.mark.parametrize("odd", [b"\x1c", b"\x1f", b"\0", b"\x0b", b"\x85", b"_", b"\xff"])
def test_nothing_but_blanks_stands_between_entries(file, odd):
    file.write_bytes(b"%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 2" + odd + b"\n")
    with pytest.raises(bs.FileFormatError, match=r"line 3: .* is not a row or column"):
        read_mtx(file)


def test_sizes_are_separated_as_entries_are(tmp_path) -> None:
    file = tmp_path / "m.mtx"
    file.write_bytes(b"%%MatrixMarket matrix coordinate pattern general\n3\x0b3\x0b1\n1 2\n")
    with pytest.raises(bs.FileFormatError, match="whole numbers are needed"):
        read_mtx(file)
    file.write_bytes(b"%%MatrixMarket matrix coordinate pattern general\n\t3\t3 1 \n1 2\n")
    assert read_mtx(file).num_nodes == 3
