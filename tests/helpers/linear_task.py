"""A linear model of five features and three classes, with nothing to test it on."""

import numpy as np
import torch

from sottovoce.learning import models
from sottovoce.learning.task import Task


def make_task() -> Task:
    module = models.build(models.Linear(), (5,), 3)
    models.initialize(models.Linear(), module, np.random.default_rng(0))
    return Task(module, torch.zeros(1, 5), torch.zeros(1, dtype=torch.int64))
