"""The design of discrete mechanisms: output values and probabilities, each with a certificate."""
