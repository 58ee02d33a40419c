"""Training: the recipe, the trainer, calibration, the files of a run."""
