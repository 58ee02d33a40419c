"""Rules about what shows when a model runs: randomness, numbers that overflow, gradients, the loss, the optimizer."""
