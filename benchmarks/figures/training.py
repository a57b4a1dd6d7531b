"""Figures about local training, local DP-SGD, adaptive clipping and users behind a secure sum."""

from collections.abc import Iterator, Mapping

from figures.figure import Figure, Model, Output, Reader, UnreadableError, at_least, at_most
from figures.learning import kept, points_below, trained

# {data: accuracies in percent at epsilon 1, 2, 4, 8}: what careful experiments reached before.
LOCAL_DP_SGD = {
    "mnist": {1.0: 96.9, 2.0: 97.0, 4.0: 97.0, 8.0: 97.0},
    "medical-mnist": {1.0: 98.0, 2.0: 98.6, 4.0: 98.6, 8.0: 98.9},
    "cifar10": {1.0: 54.5, 2.0: 58.4, 4.0: 61.0, 8.0: 63.3},
}
_TEN = {"distribution": "10 clients, IID"}
_CLIPS = ("0.1", "0.3", "1", "3")
_USERS = ("one bit behind a secure sum", "Gaussian by a trusted server")


def points_short(anchors: Mapping[float, float]) -> Reader:
    """Return by how many points Gaussian noise misses the known accuracies, at worst."""

    def reader(output: Output) -> float:
        rows = [row for row in output.rows() if row["mechanism"] == "Gaussian"]
        found = {float(row["epsilon"]): 100.0 * float(row["accuracy"]) for row in rows}
        if set(found) < set(anchors):
            raise UnreadableError(f"no rows at epsilon {sorted(set(anchors) - set(found))}")
        return max(known - found[epsilon] for epsilon, known in anchors.items())

    return reader


def cell(column: str, **where: str) -> Reader:
    """Return a column of the row that these axes name."""

    def reader(output: Output) -> float:
        for row in output.rows():
            if all(row[axis] == value for axis, value in where.items()):
                return float(row[column])
        raise UnreadableError(f"no row of {where}")

    return reader


def points_below_best_constant(output: Output) -> float:
    """Return by how many points "auto" is below the best constant clipping norm, at worst."""
    cells = {
        (row["data"], row["epsilon"], row["mechanism"]): 100.0 * float(row["accuracy"])
        for row in output.rows()
        if row["epsilon"]
    }
    places = {(data, epsilon) for data, epsilon, _ in cells}
    if not places:
        raise UnreadableError("no rows with a budget")
    return max(
        max(cells[(*place, clip)] for clip in _CLIPS) - cells[(*place, "auto")] for place in places
    )


def models(output: Output) -> Iterator[Model]:
    """Return every model of a table that has the score of the best constant answer."""
    for row in output.rows():
        axes = [row[axis] for axis in ("data", "mechanism", "epsilon") if row.get(axis)]
        yield Model(
            name=", ".join(axes),
            accuracy_low=float(row["accuracy_low"]),
            constant=float(row["trivial_score"]),
        )


FIGURES = (
    *(
        Figure(
            name=f"dp-sgd-{data}",
            asked=f"local DP-SGD on {data}, ten clients, Gaussian noise: the accuracies known "
            "before, at epsilon 1, 2, 4 and 8",
            bound=at_most(0.0),
            source=kept(f"dp-sgd-{data}"),
            read=points_short(anchors),
            models=models,
            unit="points short",
        )
        for data, anchors in LOCAL_DP_SGD.items()
    ),
    *(
        Figure(
            name=f"plain-wind-{name}",
            asked=f"wind power without privacy, seven farms: {unit}",
            bound=at_least(least),
            source=kept("plain-wind"),
            read=cell(column, data="forecasts"),
            models=models,
            unit=unit,
        )
        for name, unit, column, least in (
            ("r-squared", "R-squared", "r_squared", 0.606),
            ("error", "1 - mean absolute error", "accuracy", 0.858),
        )
    ),
    *(
        Figure(
            name=name,
            asked=f"{asked}: accuracy",
            bound=at_least(least),
            source=kept(page),
            read=cell("accuracy", **where),
            models=models,
            unit="accuracy",
        )
        for name, page, asked, where, least in (
            (
                "plain-mnist",
                "plain-images",
                "MNIST without privacy",
                {"data": "MNIST", **_TEN},
                0.985,
            ),
            (
                "plain-medical-mnist",
                "plain-images",
                "Medical MNIST without privacy",
                {"data": "Medical MNIST", **_TEN},
                0.995,
            ),
            (
                "plain-cifar10",
                "plain-cifar10",
                "CIFAR-10 without privacy, small network",
                _TEN,
                0.7,
            ),
            (
                "dp-sgd-network-cifar10",
                "dp-sgd-networks",
                "local DP-SGD of CIFAR-10's small network at epsilon 8",
                {"data": "CIFAR-10", "mechanism": "Gaussian"},
                0.53,
            ),
        )
    ),
    Figure(
        name="adaptive-clipping",
        asked="clip_norm = 'auto' within a point of the best constant clipping norm, client level, "
        "epsilon 2 and 8",
        bound=at_most(1.0),
        source=kept("adaptive-clipping"),
        read=points_below_best_constant,
        models=models,
        unit="points below",
    ),
    *(
        Figure(
            name=f"secure-sum-{data}",
            asked="one bit behind a secure sum within half a point of a trusted server, "
            f"{users}, epsilon 2 and 8",
            bound=at_most(0.5),
            source=kept(f"secure-sum-{data}"),
            read=points_below(*_USERS, (2.0, 8.0)),
            models=trained(data, _USERS),
            unit="points below",
        )
        for data, users in (
            ("mnist", "MNIST by writer"),
            ("femnist", "FEMNIST by writer"),
            ("cifar10", "1000 users of CIFAR-10"),
        )
    ),
)
