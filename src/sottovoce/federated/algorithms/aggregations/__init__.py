"""The `algorithm.aggregation` tables of this package; none of them imports torch."""
