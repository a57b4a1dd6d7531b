"""Running on several machines, over Flower: the only package that imports flwr."""
