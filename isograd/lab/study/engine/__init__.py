"""How cells are run: the ledger, worker processes, Ray."""
