"""Figures about whole updates in sixteen bytes."""

from figures.figure import (
    Figure,
    Output,
    Source,
    at_least,
    at_most,
    field,
)
from figures.learning import cell, kept, points_below, trained

VECTORS = {
    dimension: Source(
        name=f"seeded-{dimension}",
        command=f"sottovoce benchmark seeded --dimension {dimension} --mu 1 --json",
        minutes=minutes,
    )
    for dimension, minutes in ((10_000, 0.3), (100_000, 0.4), (1_000_000, 1.0))
}
LARGE = VECTORS[1_000_000]
CLIENTS = kept("seeded-mnist-clients")
HEADLINE = kept("seeded-mnist")
ALL_SHUFFLED = kept("shuffled-mnist")
SHUFFLED = Source(
    name="spend-shuffled",
    command="sottovoce privacy spend --mechanism seeded_step --param epsilon=2 --param length=kept "
    "--param generator=auto --param timing=auto --dimension 10000 --shuffled-clients 1000 "
    "--adjacency replace-one --delta 1e-6 --json",
    minutes=0.1,
)
IN_HIDDEN_ORDER = "seeds in a secret order"
ALL_CLIENTS = "one shuffle of all clients a round"


def most_bytes(output: Output) -> float:
    """Return the largest payload of a client in all rounds, where seeds are sent."""
    return max(
        float(row["payload_bytes_up_per_client"])
        for row in output.rows()
        if row["mechanism"] == IN_HIDDEN_ORDER
    )


FIGURES = (
    *(
        Figure(
            name=f"seeded-error-{dimension}",
            asked=f"error beside one bit's at equal zCDP, d = {dimension:,}, mu = 1",
            bound=at_most(1.01),
            source=source,
            read=field("mse_ratio_to_one_bit"),
            unit="times",
        )
        for dimension, source in VECTORS.items()
    ),
    Figure(
        name="seeded-bytes",
        asked="payload of an update of a million coordinates, mu = 1",
        bound=at_most(16.0),
        source=LARGE,
        read=field("payload_bytes"),
        unit="bytes",
    ),
    Figure(
        name="seeded-encode",
        asked="encoding it on one core, mean, stopping at acceptance (as a simulation does; a "
        "deployment makes all tries)",
        bound=at_most(0.05),
        source=LARGE,
        read=field("encode_seconds"),
        unit="s",
        timed=True,
    ),
    Figure(
        name="seeded-server",
        asked="the server's time for such a client",
        bound=at_most(1e-4),
        source=LARGE,
        read=field("server_seconds_per_client"),
        unit="s",
        timed=True,
    ),
    Figure(
        name="seeded-mnist-clients",
        asked="MNIST, client level: seeds within half a point of one bit, epsilon 1 to 10",
        bound=at_most(0.5),
        source=CLIENTS,
        read=points_below("seeds", "one bit", (1.0, 3.0, 6.0, 10.0)),
        models=trained("mnist", ("seeds",), (1.0, 3.0, 6.0, 10.0)),
        unit="points below",
    ),
    Figure(
        name="seeded-shuffled",
        asked="1000 shuffled clients, replace-one epsilon of 2 a message, delta 1e-6",
        bound=at_most(0.36),
        source=SHUFFLED,
        read=field("epsilon"),
    ),
    Figure(
        name="seeded-headline",
        asked="MNIST from seeds of 60,000 simulated clients in a secret order, 50,000 of them "
        "honest, epsilon 1 by the clones bound (0.63 by the blanket bound), delta 1e-6: "
        "test accuracy",
        bound=at_least(94.0),
        source=HEADLINE,
        read=lambda output: cell(output, IN_HIDDEN_ORDER, 1.0, "accuracy"),
        models=trained("mnist", (IN_HIDDEN_ORDER,), (1.0,)),
        unit="%",
    ),
    Figure(
        name="seeded-all-shuffled",
        asked="MNIST from seeds of 60,000 simulated clients, 50,000 of them honest, all shuffled "
        "in each of four rounds, 64 payload bytes each, epsilon 1, delta 1e-6: test accuracy",
        bound=at_least(96.0),
        source=ALL_SHUFFLED,
        read=lambda output: cell(output, ALL_CLIENTS, 1.0, "accuracy"),
        models=trained("mnist", (ALL_CLIENTS,), (1.0,)),
        unit="%",
    ),
    Figure(
        name="seeded-headline-bytes",
        asked="payload bytes of each of these clients, in all",
        bound=at_most(64.0),
        source=HEADLINE,
        read=most_bytes,
        models=trained("mnist", (IN_HIDDEN_ORDER,)),
        unit="bytes",
    ),
)
