"""From the settings of a small model to those of a deeper or wider one.

made = isograd.transfer.plan(run, depth=96, width=1024)       # of a recipe: settings with reasons, and the target
groups = isograd.transfer.parameter_groups(model, lr=1e-3, depth=(12, 96))       # of any model, for Adam or AdamW
isograd.transfer.initialize(model, "completep")               # draws the weights of any model by a named scheme
"""

from isograd.convert.initialize import initialize
from isograd.lab.study.transfer import Plan, Setting, plan
from isograd.lab.study.transfer.groups import parameter_groups

__all__ = ["Plan", "Setting", "initialize", "parameter_groups", "plan"]
