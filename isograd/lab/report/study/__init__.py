"""The page of a study, and what it is drawn from."""
