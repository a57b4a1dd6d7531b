"""Lower bounds on what really leaks, to hold against what is certified."""
