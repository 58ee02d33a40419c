"""The rules of `isograd check` against known faults and known families."""
