"""A model's folder: config, weights, vocabulary, card."""
