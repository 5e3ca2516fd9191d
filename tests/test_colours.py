"""Colours of the buckets: one each, told apart by everybody, visible on both pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hta_dsv4.classify.rule import BUCKETS
from hta_dsv4.present.colours import BUCKET_COLOURS, colour, ink, luminance

# Linear RGB as seen without one kind of cone: Machado, Oliveira and Fernandes 2009, severity 1.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def oklab(rgb: str, seen: object) -> np.ndarray:
    channels = np.array([int(rgb[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.asarray(seen) @ linear, 0, 1)
    lms = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
           [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
           [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    return np.asarray(lab) @ np.cbrt(np.asarray(lms) @ linear)


def test_every_bucket_has_a_colour_and_no_two_share_one():
    """Buckets of the rules -> as many different colours, in the same order."""
    assert tuple(BUCKET_COLOURS) == BUCKETS
    assert len(set(BUCKET_COLOURS.values())) == len(BUCKETS)


@pytest.mark.parametrize("vision", VISION)
def test_any_two_colours_differ_in_every_colour_vision(vision):
    """Every pair of buckets -> OKLab distance of at least 0.1, five just noticeable differences."""
    seen = {name: oklab(rgb, VISION[vision]) for name, rgb in BUCKET_COLOURS.items()}
    closest = min(
        (float(np.linalg.norm(seen[a] - seen[b])), a, b) for a, b in itertools.combinations(seen, 2)
    )
    assert closest[0] >= 0.1, closest


def test_colours_show_on_both_pages_and_their_labels_can_be_read():
    """Each colour -> contrast above 1.4 with white and near-black pages, and above 4.4 with the text put on it."""
    for name, rgb in BUCKET_COLOURS.items():
        y = luminance(rgb)
        dark = (y + 0.05) / (luminance("#14171c") + 0.05)
        assert min(1.05 / (y + 0.05), dark) > 1.4, name
        text = luminance(ink(rgb))
        assert (max(y, text) + 0.05) / (min(y, text) + 0.05) > 4.4, name


def test_a_bucket_of_the_users_own_is_grey():
    """A name outside the table -> the colour of unknown."""
    assert colour("my_bucket") == BUCKET_COLOURS["unknown"]
