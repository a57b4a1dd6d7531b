"""Run specs: build, run, resume, compare."""
