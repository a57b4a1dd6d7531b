"""Backends that simulate many clients in this process, vectorized over clients."""
