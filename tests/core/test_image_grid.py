"""Pictures are whole, readable by others, and nothing outside of the page is needed."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from sottovoce.core.charts.grids import ImageGrid, Picture, PictureRow, data_uri
from sottovoce.core.charts.style import standalone
from sottovoce.core.errors import ParameterError


@pytest.mark.parametrize("channels", [1, 3])
def test_another_reader_sees_the_same_pixels(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(channels, 5, 7), dtype=np.uint8)
    uri = data_uri(pixels / 255.0 - 0.5)
    head, _, content = uri.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        read = np.asarray(image).reshape(5, 7, channels)
    np.testing.assert_array_equal(np.moveaxis(read, -1, 0), pixels)


def test_what_lies_outside_of_the_range_is_drawn_at_its_end() -> None:
    assert data_uri(np.full((1, 2, 2), 9.0)) == data_uri(np.full((1, 2, 2), 0.5))


def test_rows_that_are_no_pictures_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"1 or 3 channels.*\(64,\)"):
        data_uri(np.zeros(64))


def test_a_grid_holds_every_picture_its_caption_and_its_name() -> None:
    source = data_uri(np.zeros((1, 2, 2)))
    rows = [
        PictureRow(
            name=name, pictures=[Picture(source=source, caption=f"{name} {n}") for n in "xy"]
        )
        for name in ("first <row>", "second")
    ]
    grid = ImageGrid(title="A & B", columns=["x", "y"], rows=rows)
    svg = grid.svg()
    assert svg.count("<image ") == 4
    assert svg.count(source) == 4
    assert "first &lt;row&gt; x" in svg
    assert 'aria-label="A &amp; B"' in svg
    assert "http" not in svg  # nothing is fetched
    assert "A &amp; B" in standalone(svg)
    assert grid.table().rows[1] == ["second", "second x", "second y"]
