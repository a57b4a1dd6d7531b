"""From a spec to the parts of a run: data, clients, model, algorithm, calibrated mechanisms."""
