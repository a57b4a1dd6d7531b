"""Mechanism design: alphabets and base measures, each with a certificate."""
