"""Wind power on a small file made here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import load, save

from sottovoce.core.errors import DataError
from sottovoce_papers.datasets.gefcom_wind import _as_hours


def wind_arrays() -> dict[str, Any]:
    """Two farms, four days before the evaluation period and two in it; one forecast is missing."""
    hours = np.arange(np.datetime64("2010-12-28T00", "h"), np.datetime64("2011-01-03T00", "h"))
    issues = hours[::12]

    def stamps(times: Any) -> Any:
        texts = np.datetime_as_string(times, unit="h")
        return np.array([int(text.replace("-", "").replace("T", "")) for text in texts])

    ahead = np.arange(48)
    speed = np.arange(len(issues))[:, None] + ahead / 100.0
    nwp = np.stack([speed, -speed, speed, np.full(speed.shape, 90.0)], axis=-1)[None]
    nwp = np.concatenate([nwp, nwp + 0.5]).astype(np.float32)
    nwp[:, 3, 12:24] = np.nan
    power = np.linspace(0, 1, 2 * len(hours)).reshape(-1, 2).astype(np.float32)
    return {"date": stamps(hours), "power": power, "issue_date": stamps(issues), "nwp": nwp}


def test_wind_power_has_each_measurement_once_and_is_tested_on_what_comes_later(
    tmp_path: Path,
) -> None:
    arrays = wind_arrays()
    save(tmp_path / "gefcom2012_wind.npz", **arrays)
    data = load("gefcom_wind", tmp_path)
    assert data.num_classes is None
    assert data.num_outputs == 1
    assert data.input_shape == (6, 5)
    assert data.train_owners is not None
    # 96 hours up to and with midnight, the first without a forecast an hour before it.
    assert np.bincount(data.train_owners).tolist() == [96, 96]
    np.testing.assert_array_equal(
        data.train_labels[:, 0], arrays["power"][1:97].T.reshape(-1).astype(np.float32)
    )
    np.testing.assert_array_equal(data.test_labels[:, 0], arrays["power"][97:].T.reshape(-1))
    assert np.isfinite(data.train_features).all()


def test_each_row_of_wind_has_the_forecast_for_its_hour(tmp_path: Path) -> None:
    """The speed tells the issue (whole) and the hours ahead (hundredths) that it came from."""
    save(tmp_path / "gefcom2012_wind.npz", **wind_arrays())
    data = load("gefcom_wind", tmp_path)
    farm = data.train_owners == 0
    rows = data.train_features[farm]
    speed = (rows[:, 2] + 0.5) * 20
    issue = np.floor(speed[:, 2] + 1e-4)
    ahead = np.round(100 * (speed[:, 2] - issue))
    np.testing.assert_array_equal(12 * issue + ahead + 1, np.arange(1, 97))
    np.testing.assert_allclose(rows[:, 5, 0], (ahead + 1) / 48 - 0.5, atol=1e-6)
    np.testing.assert_allclose(rows[:, 3], 0.5, atol=1e-6)
    np.testing.assert_allclose(rows[:, 4], 0.0, atol=1e-6)
    np.testing.assert_allclose(rows[:, 0] * 40, speed, atol=1e-4)
    np.testing.assert_allclose(rows[:, 1] * 40, -speed, atol=1e-4)
    inner = (ahead >= 2) & (ahead <= 45) & (issue != 3)
    np.testing.assert_allclose(
        speed[inner] - speed[inner][:, [2]], np.arange(-2, 3) / 100 + 0 * speed[inner], atol=1e-4
    )
    first = ahead == 0  # nothing before it: its own values stand in
    np.testing.assert_allclose(speed[first][:, :2], speed[first][:, [2, 2]], atol=1e-5)
    assert set(ahead // 12) == {0, 1, 2, 3}
    assert not np.any((issue == 3) & (ahead >= 12) & (ahead < 24))


def test_the_farm_can_be_an_input(tmp_path: Path) -> None:
    save(tmp_path / "gefcom2012_wind.npz", **wind_arrays())
    plain, farms = load("gefcom_wind", tmp_path), load("gefcom_wind-farms", tmp_path)
    np.testing.assert_array_equal(farms.train_features[:, :6], plain.train_features)
    assert farms.train_owners is not None
    own = np.eye(2)[farms.train_owners] / 2
    np.testing.assert_array_equal(farms.train_features[:, 6:], np.repeat(own[..., None], 5, axis=2))


def test_wind_that_is_damaged_is_named(tmp_path: Path) -> None:
    path, arrays = tmp_path / "gefcom2012_wind.npz", wind_arrays()
    for wrong, message in (
        ({"power": arrays["power"] + 1}, r"outside \[0, 1\]"),
        ({"nwp": arrays["nwp"][:, :-1]}, "'nwp' has shape"),
        ({"nwp": np.full_like(arrays["nwp"], np.nan)}, "no hour"),
        ({"date": arrays["date"] / 2}, "not integers YYYYMMDDHH"),
    ):
        save(path, **{**arrays, **wrong})
        with pytest.raises(DataError, match=message):
            load("gefcom_wind", tmp_path)


def test_stamps_are_read_as_hours() -> None:
    found = _as_hours(Path("f"), np.array([2009070100, 2012022923, 2010123124]))
    expected = ["2009-07-01T00", "2012-02-29T23", "2011-01-01T00"]
    np.testing.assert_array_equal(found, np.array(expected, dtype="datetime64[h]"))
