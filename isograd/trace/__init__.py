"""Any model's computation, recorded and replayed: what is a norm, a sum, a branch, a residual."""
