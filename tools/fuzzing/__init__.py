"""One file for each entrance through which somebody else's input comes in."""
