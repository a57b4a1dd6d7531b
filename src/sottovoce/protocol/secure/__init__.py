"""Secure sums and shuffling as cryptographic protocols, without any network code.

Each party is an object that takes a message and returns the next one, so the same code runs behind
Flower, behind HTTPS and in tests. `encoding` says what bytes are hashed and signed, `masks` hides
integers, `roster` names the parties and their keys, `attempt` is what all parties agree on, and
`ledger.journal` keeps what a party must not forget.

`pairwise_site` and `pairwise_server` are the parties of the sum by pairwise masks, which
docs/explanation/secure-sum.md explains; `energy` checks a sum of bits whose terms stay hidden.

`relay`, `collector`, `two_server_client` and `shuffle_client` are the parties of sums and shuffles
by two operators, which docs/explanation/relay-and-collector.md explains.
"""
