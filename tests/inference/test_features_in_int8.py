"""Features in 8-bit integers: how far they are off, and what is no number."""

from __future__ import annotations

import numpy as np

from inference.features import LARGEST, FeatureForm, from_int8, to_int8


def test_a_number_is_off_by_half_a_step_of_its_layer_at_most() -> None:
    states = np.random.default_rng(1).standard_normal((5, 3, 64), dtype=np.float32)
    states *= np.float32([1e-6, 1.0, 1e6])[None, :, None]
    block = to_int8(7, states)
    back = from_int8(block.scales, block.values).reshape(states.shape)
    greatest = np.abs(states).max(-1, keepdims=True)
    assert (np.abs(back - states) <= greatest / 254 * (1 + 1e-5)).all()
    assert (block.position, block.scales.nbytes + block.values.nbytes) == (
        7,
        5 * FeatureForm((1, 2, 3), 64).position_bytes,
    )


def test_zeros_stay_zeros_and_what_is_no_number_becomes_one() -> None:
    states = np.array([[[0, 0]], [[np.nan, 1]], [[np.inf, -np.inf]]], dtype=np.float32)
    block = to_int8(0, states)
    back = from_int8(block.scales, block.values)
    assert np.isfinite(back).all()
    assert back[:2].tolist() == [[0, 0], [0, 1]]
    assert np.allclose(back[2], [LARGEST, -LARGEST])
