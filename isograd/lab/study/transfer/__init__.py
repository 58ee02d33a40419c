"""From the settings of a small model to those of a deeper or wider one, and the proof.

plan.py         the settings of the target, by a rule, each with its reason
groups.py       the same as parameter groups for a loop of one's own
coordinates.py  how far each quantity moves in a few updates, over sizes: flat or not
drift.py        where the best learning rate of a study stands, over sizes
"""

from isograd.lab.study.transfer.plan import Plan, Setting, plan

__all__ = ["Plan", "Setting", "plan"]
