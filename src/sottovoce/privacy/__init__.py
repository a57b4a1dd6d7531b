"""Privacy as data: events, exact divergences, accountants, calibration (numpy float64 only)."""
