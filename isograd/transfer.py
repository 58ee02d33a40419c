"""From the settings of a small model to those of a deeper or wider one.

made = isograd.transfer.plan(run, depth=96, width=1024)       # of a recipe: settings with reasons, and the target
"""

from isograd.study.transfer import Plan, Setting, plan

__all__ = ["Plan", "Setting", "plan"]
