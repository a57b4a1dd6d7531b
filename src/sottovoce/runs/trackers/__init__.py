"""Rounds as they come, written where people already look: TensorBoard and MLflow, both extras."""
