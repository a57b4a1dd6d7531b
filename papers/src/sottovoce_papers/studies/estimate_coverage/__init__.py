"""The experiment `estimate-coverage`: how often intervals of estimates cover the truth."""
