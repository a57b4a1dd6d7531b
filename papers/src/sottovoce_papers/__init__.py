"""Experiments: what the papers claim, measured again; catalogue, sweeps, studies, the demo."""
