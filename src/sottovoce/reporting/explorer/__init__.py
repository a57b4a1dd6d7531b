"""The mechanism explorer, a page on this machine that shows what parameters do."""
