"""A suspicion is tried: what is trained, how it is judged, and what is confirmed is applied."""
