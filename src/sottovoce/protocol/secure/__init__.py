"""Secure sums and shuffling as cryptographic protocols, without any network code.

Each party is an object that takes a message and returns the next one, so the same code runs behind
Flower, behind HTTPS and in tests. `encoding` says what bytes are hashed and signed, `masks` hides
integers, `roster` names the parties and their keys, `attempt` is what all parties agree on, and
`journal` keeps what a party must not forget.
"""
