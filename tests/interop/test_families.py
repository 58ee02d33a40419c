"""In and out of every family: the same weights bit for bit, logits, gradients and texts, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.interop.pretrained import from_transformers, to_transformers
from tests.build import close
from tests.interop.families import FAMILIES, Native, ids, logits


def name_of(native: Any) -> str:
    from isograd.interop.hf import FAMILIES as HERE

    return next(name for name, f in HERE.items() if type(native).__name__ in f.classes.values())


@pytest.mark.parametrize("native", FAMILIES, ids=str)
def test_in_and_out(native: Native, tmp_path: Path) -> None:
    theirs = native.build()
    ours = from_transformers(theirs)
    given = ids()
    mask = torch.ones_like(given)
    mask[1, 10:] = 0
    expected = logits(theirs, given, mask)[mask.bool()]
    close(logits(ours, given, mask)[mask.bool()], expected, 1e-9)
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path, dtype=torch.float64)
    back = to_transformers(again, name_of(theirs))
    assert type(back) is type(theirs)
    before = theirs.state_dict()
    for name, value in back.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert set(before) == set(back.state_dict())
    close(logits(back, given, mask)[mask.bool()], expected, 1e-13)
