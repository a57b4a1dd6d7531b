"""What all other packages use: adjacency, domains, randomness, errors, files, tables."""
