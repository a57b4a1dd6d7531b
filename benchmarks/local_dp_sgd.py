"""Samples per second of local DP-SGD, beside per-sample gradients by torch.func and by Opacus.

    python benchmarks/local_dp_sgd.py --model udp_mnist_cnn --clients 50 --batch 300 --device cuda

What is timed is the code that a run executes with runtime.messages = 'none': samples, clipped sums,
noise and the step of every client. The peers compute clipped sums of one client after the other,
without noise. Before timing, the clipped sums are compared with those of torch.func.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.noisy_steps import NoisyLocalSteps
from sottovoce.learning.clients import Clients
from sottovoce.learning.models.register import model_of
from sottovoce.learning.task import Task
from sottovoce.mechanisms.compressed_update import compressed
from sottovoce.mechanisms.registry import find

SHAPES = {"udp_mnist_cnn": (1, 28, 28), "small_cifar_cnn": (3, 32, 32), "resnet18": (3, 32, 32)}


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least time of a call."""
    best = float("inf")
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return best


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="udp_mnist_cnn")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=300, help="expected records of a step")
    parser.add_argument("--records", type=int, default=1500, help="records of a client")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["float32", "tf32"], default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="time torch.func and Opacus, too")
    asked = parser.parse_args()
    shape, total = SHAPES[asked.model], asked.clients * asked.records
    torch.manual_seed(0)
    module = model_of(asked.model, {}).build(shape, 10)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(total, *shape, generator=generator).to(asked.device)
    labels = torch.randint(10, (total,), generator=generator).to(asked.device)
    task = Task(module, features[:10], labels[:10], device=asked.device, precision=asked.precision)
    shares = [torch.arange(asked.records).numpy() + i * asked.records for i in range(asked.clients)]
    clients = Clients(features, labels, shares)
    work = NoisyLocalSteps(
        clip_norm=1.0,
        steps=asked.steps,
        batch_size=asked.batch,
        learning_rate=0.01,
        summation="float",
    )
    domain = work.domain(task.dimension, asked.records)
    mechanism = compressed(find("gaussian").build(domain, {"noise_multiplier": 1.0}))

    def round_of(number: int) -> None:
        step = ClientStepInput(
            run="b",
            round=number,
            model=task.initial_model(),
            state={},
            randomness=SeededRandomness(1),
            mechanism_of=lambda _: mechanism,
        )
        for _ in work.updates(task, clients, step):
            pass

    found = {"difference": difference(task, features[:32], labels[:32])}
    round_of(1)
    numbers = iter(range(2, 100))
    samples = asked.clients * asked.batch * asked.steps
    found["sottovoce"] = samples / seconds(lambda: round_of(next(numbers)), asked.repeats)
    if asked.peers:
        found |= peers(module, features[: asked.batch], labels[: asked.batch], asked.repeats)
    if asked.device == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps({**vars(asked), **{k: round(v, 7) for k, v in found.items()}}))


def difference(task: Task, features: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the largest relative difference of clipped sums from those of torch.func."""
    model = task.tensor(task.initial_model())
    ones = torch.ones(1, 1, len(labels), device=features.device)
    own = task.stacked_gradients(model[None], features[None], labels[None])
    sums = own.clipped_totals(1.0, ones)[0, 0]

    def loss(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return task.loss(flat, x[None], y[None])

    rows = vmap(grad(loss), in_dims=(None, 0, 0))(model, features, labels)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    expected = (rows / norms.clamp(min=1.0)).sum(dim=0)
    return float((sums - expected).norm() / expected.norm())


def peers(
    module: nn.Module, features: torch.Tensor, labels: torch.Tensor, repeats: int
) -> dict[str, float]:
    """Return the samples per second of clipped sums of one client, by torch.func and Opacus."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(given: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        outputs = functional_call(module, given, (x[None],))
        return nn.functional.cross_entropy(outputs, y[None])

    def by_vmap() -> None:
        rows = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, features, labels)
        squares = sum(g.flatten(1).square().sum(1) for g in rows.values())
        factors = 1.0 / squares.sqrt().clamp(min=1.0)
        for g in rows.values():
            torch.tensordot(factors, g, dims=1)

    found = {}
    try:
        by_vmap()
        found["torch_func"] = len(labels) / seconds(by_vmap, repeats)
    except RuntimeError as error:
        print("torch.func:", str(error).splitlines()[0])
    try:
        from opacus import GradSampleModule  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return found
    sampled = GradSampleModule(module)

    def by_opacus() -> None:
        sampled.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(sampled(features), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
        rows = [p.grad_sample for p in sampled.parameters()]
        squares = sum(g.flatten(1).square().sum(1) for g in rows)
        factors = 1.0 / squares.sqrt().clamp(min=1.0)
        for g in rows:
            torch.tensordot(factors, g, dims=1)

    by_opacus()
    found["opacus"] = len(labels) / seconds(by_opacus, repeats)
    return found


if __name__ == "__main__":
    main()
