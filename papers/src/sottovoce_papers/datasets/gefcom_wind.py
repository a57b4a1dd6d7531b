"""Wind power of seven farms from weather forecasts: the wind track of GEFCom2012.

The npz file holds `date` (the measured hours, as YYYYMMDDHH), `power` (hours, farms) in [0, 1],
`issue_date` (when forecasts were issued) and `nwp` (farms, issues, 48 hours ahead, variables) with
the variables u, v, ws, wd: the wind to the east and to the north and its speed in m/s, and its
direction in degrees. Values that were not published are NaN.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.learning.datasets.dataset import (
    Array,
    Dataset,
    Features,
    check_same_rows,
    damaged_file_error,
    read_npz,
)
from sottovoce.learning.datasets.register import DataFile, DataSource, LoadRequest, register

NUM_HOURS_AHEAD = 48
ISSUE_EVERY_HOURS = 12
WINDOW = (-2, -1, 0, 1, 2)  # Hours around the target hour.
SPEED_SCALE = 20.0  # m/s; at 10 m above ground, faster forecasts are rare.
TEST_FROM = np.datetime64("2011-01-01T01", "h")  # The contest's evaluation period.
_VARIABLES = 4

Hours = NDArray[np.datetime64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The forecast of each measured hour: its issue, and the hours ahead, counted from 0."""

    hour: NDArray[np.int64]
    issue: NDArray[np.int64]
    ahead: NDArray[np.int64]


_SOURCES = (DataSource(files=(DataFile(path="gefcom2012_wind.npz"),)),)
_REMEDY = (
    "get GEFCom2012's wind track (Hong, Pinson and Fan 2014, supplementary data) and save its "
    "arrays date, power, issue_date and nwp under that name"
)


@register(
    "gefcom_wind",
    summary="hourly power of 7 wind farms from weather forecasts: regression, one owner per farm",
    sources=_SOURCES,
    remedy=_REMEDY,
)
def gefcom_wind(request: LoadRequest) -> Dataset:
    """Return one row per farm and measured hour: 6 channels by 5 hours of forecast, and the power.

    Every hour is forecast up to four times, 1 to 48 hours ahead. One of the four is used,
    alternating from day to day, so that a measurement is in one row only and every distance is
    equally frequent. The channels are u/40, v/40, ws/20 - 1/2, sin(wd)/2, cos(wd)/2 and hours
    ahead/48 - 1/2. Hours of the window that the forecast does not cover take the values of the
    target hour. Test data are those of the contest, from 2011 on; training data are those before.

    Reference: Hong, Pinson and Fan 2014.
    """
    return _load(request.paths[0], "gefcom_wind", with_farm=False)


@register(
    "gefcom_wind-farms",
    summary="the same with the farm as an input, so that linear models tell farms apart",
    sources=_SOURCES,
    remedy=_REMEDY,
)
def gefcom_wind_with_farms(request: LoadRequest) -> Dataset:
    """Return the rows of `gefcom_wind` with a further channel for each farm.

    It is 1/2 in the rows of its farm and 0 in all others.
    """
    return _load(request.paths[0], "gefcom_wind-farms", with_farm=True)


def _load(path: Path, name: str, *, with_farm: bool) -> Dataset:
    data = read_npz(path, {"date": 1, "power": 2, "issue_date": 1, "nwp": 4})
    _check(path, data)
    hours, issues = _as_hours(path, data["date"]), _as_hours(path, data["issue_date"])
    parts = [
        _part(data, _rows(path, data["nwp"], hours, issues, period), with_farm=with_farm)
        for period in (hours < TEST_FROM, hours >= TEST_FROM)
    ]
    (train_features, train_labels, owners), (test_features, test_labels, _) = parts
    return Dataset(
        name=name,
        train_features=train_features,
        train_labels=train_labels,
        test_features=test_features,
        test_labels=test_labels,
        num_classes=None,
        train_owners=owners,
        note=(
            "GEFCom2012 wind track, Hong, Pinson and Fan 2014: cite it. Tested on the hours of "
            "2011 and 2012 whose power was published; blocks of 48 hours were not."
        ),
    )


def _check(path: Path, data: dict[str, Array]) -> None:
    power, nwp = data["power"], data["nwp"]
    check_same_rows(path, date=data["date"], power=power)
    expected = (power.shape[1], len(data["issue_date"]), NUM_HOURS_AHEAD, _VARIABLES)
    if nwp.shape != expected:
        raise damaged_file_error(path, f"'nwp' has shape {nwp.shape}, not {expected}")
    if power.dtype.kind != "f" or nwp.dtype.kind != "f":
        raise damaged_file_error(
            path, f"'power' and 'nwp' are {power.dtype} and {nwp.dtype}, not numbers"
        )
    if not np.all((power >= 0.0) & (power <= 1.0)):
        raise damaged_file_error(path, "'power' has values outside [0, 1]")


def _as_hours(path: Path, stamps: Array) -> Hours:
    """Return integers YYYYMMDDHH as numpy's hours."""
    if stamps.dtype.kind not in "iu":
        raise damaged_file_error(path, f"dates are {stamps.dtype}, not integers YYYYMMDDHH")
    stamps = stamps.astype(np.int64)
    months = (stamps // 10**6 - 1970) * 12 + stamps // 10**4 % 100 - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (stamps // 100 % 100 - 1)
    hours: Hours = days.astype("datetime64[h]") + stamps % 100
    return hours


def _rows(path: Path, nwp: Array, hours: Hours, issues: Hours, period: Array) -> _Rows:
    """Return, for each hour of `period`, one forecast that all farms have.

    Up to four forecasts are tried in an order that depends on the day; the first that exists is
    used.
    """
    there: Array = ~np.any(np.isnan(nwp), axis=(0, 3))
    wanted = np.flatnonzero(period)
    # The first forecast is for one hour ahead.
    since_first = (hours[wanted] - issues[0]).astype(np.int64) - 1
    newest, step = np.divmod(since_first, ISSUE_EVERY_HOURS)
    num_choices = NUM_HOURS_AHEAD // ISSUE_EVERY_HOURS
    day = hours[wanted].astype("datetime64[D]").astype(np.int64)
    chosen = np.full(len(wanted), -1)
    for turn in reversed(range(num_choices)):  # The earliest turn is written last and overrides.
        back = (day + turn) % num_choices
        issue, ahead = newest - back, step + back * ISSUE_EVERY_HOURS
        inside = (issue >= 0) & (issue < len(issues))
        usable = inside & there[np.clip(issue, 0, len(issues) - 1), ahead]
        chosen = np.where(usable, back, chosen)
    kept = chosen >= 0
    if not kept.any():
        raise damaged_file_error(
            path, f"no hour before or from {TEST_FROM} on has both power and a forecast"
        )
    back = chosen[kept]
    return _Rows(
        hour=wanted[kept],
        issue=newest[kept] - back,
        ahead=step[kept] + back * ISSUE_EVERY_HOURS,
    )


def _part(
    data: dict[str, Array], rows: _Rows, *, with_farm: bool
) -> tuple[Features, Features, NDArray[np.int64]]:
    """Return (features, power, farm) of some hours, farm by farm."""
    num_farms = data["power"].shape[1]
    features = [_features(data["nwp"][farm], rows) for farm in range(num_farms)]
    power = data["power"][rows.hour].T.reshape(-1, 1).astype(np.float32)
    owners = np.repeat(np.arange(num_farms, dtype=np.int64), len(rows.hour))
    values = np.concatenate(features)
    if with_farm:
        farms = np.eye(num_farms, dtype=np.float32)[owners] / 2
        farms = np.repeat(farms[:, :, None], values.shape[2], axis=2)
        values = np.concatenate([values, farms], axis=1)
    return values, power, owners


def _features(nwp: Array, rows: _Rows) -> Features:
    """Return the features of one farm, of shape (rows, channels, window)."""
    ahead = rows.ahead[:, None] + np.array(WINDOW)
    inside = (ahead >= 0) & (ahead < NUM_HOURS_AHEAD)
    around = nwp[rows.issue[:, None], np.clip(ahead, 0, NUM_HOURS_AHEAD - 1)]
    own = nwp[rows.issue, rows.ahead][:, None]
    known = inside[..., None] & ~np.isnan(around)
    east, north, speed, direction = np.moveaxis(np.where(known, around, own), -1, 0)
    angle = np.deg2rad(direction)
    distance = np.broadcast_to((rows.ahead[:, None] + 1) / NUM_HOURS_AHEAD - 0.5, speed.shape)
    channels = (
        east / (2 * SPEED_SCALE),
        north / (2 * SPEED_SCALE),
        speed / SPEED_SCALE - 0.5,
        np.sin(angle) / 2,
        np.cos(angle) / 2,
        distance,
    )
    return np.stack(channels, axis=1).astype(np.float32)
