"""The server: stock FedAvg, and two lines."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from own_app.task import accuracy, make_model, test_data
from sottovoce.flower import PrivateStrategy  # sottovoce

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy: Strategy = FedAvg(fraction_evaluate=0.0)
    strategy = PrivateStrategy(strategy, context)  # sottovoce
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    if context.run_config["output"]:
        found = {
            "accuracy": dict(
                result.evaluate_metrics_serverapp[max(result.evaluate_metrics_serverapp)]
            ),
            "training": {str(n): dict(one) for n, one in result.train_metrics_clientapp.items()},
            "model_bytes": result.arrays.count_bytes(),
        }
        Path(str(context.run_config["output"])).write_text(json.dumps(found))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
    """On the server's own test data: what clients measure would be private."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model, test_data())})
