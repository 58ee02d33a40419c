"""Training: the recipe, the trainer, calibration, the files of a run.

runs/NAME/
  run.json          the recipe, resolved
  resolved.json     what was built: formulas, the numbers of every site, sizes
  metrics.jsonl     one row per step: step, loss, lr, grad_norm
  quantities.jsonl  one row per observed step and sublayer
  outcome.json      how it ended; its presence means the run has ended
  checkpoints/      to go on from
  model/            the trained model and its tokenizer
"""
