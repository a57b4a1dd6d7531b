"""The privacy ledger: what each client has spent."""
