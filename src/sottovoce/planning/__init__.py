"""Which mechanism to use: all of them at one sound budget, ranked by their error."""
