"""The command line: one file per noun (the only importer of typer)."""
