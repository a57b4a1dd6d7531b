"""The client: an ordinary ClientApp, and two lines."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_app.task import fit, make_model, train_data
from sottovoce.flower import private_mod  # sottovoce

app = ClientApp(
    mods=[private_mod],  # sottovoce
)


@app.train()
def train(message: Message, context: Context) -> Message:
    partition = int(context.node_config["partition-id"])
    num_partitions = int(context.node_config["num-partitions"])
    samples = train_data(partition, num_partitions, int(context.run_config["seed"]))
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    steps, rate = context.run_config["local-steps"], context.run_config["learning-rate"]
    fit(model, samples, int(steps), float(rate))
    metrics = MetricRecord({"num-examples": len(samples[1])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
