"""The entrances through which untrusted input arrives, one module each."""
