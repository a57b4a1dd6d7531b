"""The command line: one file for each noun.

    python -m sottovoce plan --epsilon 2 --delta 1e-5 --dimension 10000

Commands print what the other packages compute, a mistake in one line. Nothing imports it; it
imports all others, each when its command is called, and typer and rich, which nobody else does.
"""
