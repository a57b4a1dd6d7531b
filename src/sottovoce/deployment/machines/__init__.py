"""The machines of a federation: folders, certificates, and the programs that run on them."""
