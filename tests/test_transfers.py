"""Uploads and downloads with the CPU as the device, and parts that need no device."""

from __future__ import annotations

import numpy as np
import pytest

import bitsparse as bs
from bitsparse import interop


def test_one_array_is_not_copied() -> None:
    up = interop.Uploader("cpu")
    source = up.staging(100)
    assert source.ctypes.data % 128 == 0
    source[...] = np.arange(100)
    batch = up.upload(source)
    with batch as buffer:
        assert buffer.ctypes.data == source.ctypes.data
        assert interop.view(buffer, 4, (2, 3), np.uint16).shape == (2, 3)
    assert (batch.slot, batch.nbytes, batch.offsets, batch.done(), batch.ms) == (0, 100, (0,), True, None)
    batch.synchronize()
    assert up.moved == up.grown == 0


def test_several_are_laid_one_after_the_other() -> None:
    parts: list[np.ndarray] = [np.arange(5, dtype=np.int16), np.zeros((0, 3), np.float64), np.eye(3, dtype=np.float32)]
    with interop.Uploader("cpu", slots=1) as up:
        for _ in range(3):
            batch = up.upload(*parts)
            buffer = batch.wait()
            assert (batch.offsets, batch.nbytes) == ((0, 128, 128), 128 + 36)
            for part, offset in zip(parts, batch.offsets, strict=True):
                np.testing.assert_array_equal(interop.view(buffer, offset, part.shape, part.dtype), part)
            batch.release()
        assert up.upload().wait().size == 0


def test_results() -> None:
    out = np.full((2, 3), np.nan, np.float32)
    with interop.Downloader("cpu") as down:
        made = down.download(np.ones((2, 3), np.float32), out)
        made.hold()
        assert made.wait() is out
    assert (out == 1).all()


def test_errors() -> None:
    with pytest.raises(ValueError, match="chunk_bytes=0"):
        interop.Uploader("cpu", chunk_bytes=0)
    with pytest.raises(bs.DTypeError, match="source 0 is a float"):
        interop.Uploader("cpu").upload(1.0)
    with pytest.raises(ValueError, match="strides"):
        interop.Uploader("cpu").upload(np.ones((2, 3))[:, ::2])
    with pytest.raises(bs.ShapeError, match="out"):
        interop.Downloader("cpu").download(np.ones(2), np.ones(3))
    with pytest.raises(bs.DeviceError, match="no backend for device 'tpu'"):
        interop.Uploader("tpu")
