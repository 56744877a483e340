"""Seeded damage to files: changed bytes, numbers and words, parts doubled, cut off and exchanged, and files of words in random order."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Sequence

NUMBERS = (
    b"0 1 2 3 7 8 9 15 16 17 31 32 33 63 64 65 127 128 255 256 32767 65536 2147483647 2147483648 4294967296 9223372036854775807 -1 -2 0.5 "
    b"1e9 1e400 nan inf -inf 1_0 99999999999999999999 18446744073709551616 1e-320 007 +5 - . e"
).split(b" ")
RAW = [
    b"",
    b"\0",
    b"\0" * 8,
    b"\xff" * 4,
    b"\xff\xff\xff\x7f",
    b"\n",
    b"\r",
    b" ",
    b"\xef\xbb\xbf",
    b"\x80",
    b"%",
    b"#",
    b"'",
    b'"',
    b"[" * 50,
]
_DIGITS = re.compile(rb"-?\d+(?:\.\d+)?")


def damaged(rng: random.Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """One of the seeds with one to three changes, mostly after its first line, or, one time in ten, words in random order."""
    if words and rng.random() < 0.1:
        return b"".join(rng.choice(words) for _ in range(rng.randrange(1, 30)))
    content = rng.choice(seeds)
    kept = content.find(b"\n") + 1 if rng.random() < 0.7 else 0
    head, rest = content[:kept], content[kept:]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rest = rng.choice(_CHANGES)(rng, rest, seeds, words)
    return head + rest


# Start and stop of a random piece of the content.
def _place(rng: random.Random, content: bytes) -> tuple[int, int]:
    at = rng.randrange(len(content) + 1)
    return at, min(len(content), at + rng.choice((1, 1, 2, 4, 8, 20, 100)))


def _cut(rng: random.Random, content: bytes, *_: object) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _byte(rng: random.Random, content: bytes, *_: object) -> bytes:
    at, _end = _place(rng, content)
    return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]


def _bit(rng: random.Random, content: bytes, *_: object) -> bytes:
    at, _end = _place(rng, content)
    flipped = bytes([content[at] ^ (1 << rng.randrange(8))]) if at < len(content) else b""
    return content[:at] + flipped + content[at + 1 :]


def _remove(rng: random.Random, content: bytes, *_: object) -> bytes:
    at, end = _place(rng, content)
    return content[:at] + content[end:]


def _double(rng: random.Random, content: bytes, *_: object) -> bytes:
    at, end = _place(rng, content)
    return content[:end] + content[at:end] * rng.choice((1, 1, 2, 5)) + content[end:]


def _insert(rng: random.Random, content: bytes, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    at, end = _place(rng, content)
    return content[:at] + rng.choice((*RAW, *words)) + content[at if rng.random() < 0.5 else end :]


def _number(rng: random.Random, content: bytes, *_: object) -> bytes:
    found = list(_DIGITS.finditer(content))
    if not found:
        return content
    chosen = rng.choice(found)
    return content[: chosen.start()] + rng.choice(NUMBERS) + content[chosen.end() :]


def _raw_number(rng: random.Random, content: bytes, *_: object) -> bytes:
    at = rng.randrange(len(content) + 1) & ~3
    value = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 255, 65536, rng.randrange(-(2**31), 2**31)))
    return content[:at] + struct.pack("<i", value) + content[at + 4 :]


def _splice(rng: random.Random, content: bytes, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return content[: rng.randrange(len(content) + 1)] + other[rng.randrange(len(other) + 1) :]


_CHANGES = (_cut, _byte, _bit, _remove, _double, _insert, _insert, _number, _number, _raw_number, _splice)


# ---- npz files: their members are damaged before they are zipped, so that the checksums hold
def zipped(members: Sequence[tuple[str, bytes]], rng: random.Random) -> bytes:
    """A zip file of these members, each deflated at random."""
    body, directory = bytearray(), bytearray()
    for name, content in members:
        deflate = rng.random() < 0.3
        data = _deflated(content) if deflate else content
        raw = name.encode()
        common = struct.pack(
            "<5H3I2H", 20, 0, 8 * deflate, 0, 33, zlib.crc32(content), len(data), len(content), len(raw), 0
        )
        directory += b"PK\1\2\x14\0" + common + struct.pack("<3H2I", 0, 0, 0, 0, len(body)) + raw
        body += b"PK\3\4" + common + raw + data
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return bytes(body + directory + end)


def _deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def text_of(member: bytes) -> str | None:
    """The text in an .npy file that holds one text, or None for any other file."""
    match = re.match(
        rb"\x93NUMPY\x01\x00..\{'descr': '<U\d+', 'fortran_order': False, 'shape': \(\), \} *\n", member, re.DOTALL
    )
    return None if match is None else member[match.end() :].decode("utf-32-le", "replace")


def member_of(text: str) -> bytes:
    """The .npy file of an array that holds one text."""
    header = f"{{'descr': '<U{max(len(text), 1)}', 'fortran_order': False, 'shape': (), }}\n".encode()
    return (
        b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + (text or "\0").encode("utf-32-le", "surrogatepass")
    )


def damaged_archive(
    rng: random.Random, archives: Sequence[Sequence[tuple[str, bytes]]], words: Sequence[bytes]
) -> bytes:
    """An archive with damage in its members, or, one time in five, anywhere in its zip file."""
    members = list(rng.choice(archives))
    if rng.random() < 0.2:
        return damaged(rng, [zipped(members, rng)], RAW)
    for _ in range(rng.choice((1, 1, 2))):
        i = rng.randrange(len(members))
        name, content = members[i]
        text = text_of(content)
        what = rng.random()
        if text is not None and what < 0.7:
            members[i] = name, member_of(damaged(rng, [text.encode()], words).decode("utf-8", "replace")[:3000])
        elif what < 0.6:  # other numbers, in a member of the same size
            kept = content.find(b"\n") + 1
            members[i] = (
                name,
                content[:kept] + rng.choice((_raw_number, _bit))(rng, content[kept:])[: len(content) - kept],
            )
        elif what < 0.85:
            members[i] = name, damaged(rng, [content], words)
        elif what < 0.9 and len(members) > 1:
            del members[i]
        elif what < 0.95:
            members[i] = name, rng.choice(rng.choice(archives))[1]
        else:
            members.append((rng.choice(rng.choice(archives))[0], content))
    return zipped(members, rng)
