"""A federation's machines: folders, certificates, and the programs that run on them."""
