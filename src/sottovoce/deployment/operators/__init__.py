"""Relay and collector: two operators that do not collude, over HTTPS.

The relay is the only server. Devices post their reports to it, and the collector is a client of it
too. `folders` has what each party keeps, `application` answers requests, `relay_program` runs it,
`calls` sends requests, and `device` sends a client's reports.
"""
