"""Rules about attentions, each measured by itself: what it sees, how it scales, splits heads and tells positions."""
