"""`isograd graft`: a model changed in its structure."""

import json as json_
from typing import TYPE_CHECKING, Annotated, Literal

from isograd.cli.console import loading, print_json, warn
from isograd.cli.parser import EACH, Folder
from isograd.errors import refusing
from isograd.files import refuse_existing

if TYPE_CHECKING:
    from isograd.interop.graft import Grafted

Changes = Annotated[list[Annotated[str, "NAME=VALUE"]], EACH]


def graft(
    model: str,
    *,
    out: Folder,
    change: Changes,
    insert: Literal["even", "top", "bottom"] = "even",
    new: Literal["copy", "init"] = "copy",
    json: bool = False,
) -> int:
    """Change a model's structure: more layers, with a parity report.

    --change  layers=N     the number of layers: new ones write 0 at first

    examples:
      isograd graft gpt2 --out gpt2-24 --change layers=24
      isograd graft my-llama --out deeper --change layers=48 --insert top --new init

    Any causal or masked model of transformers: its layers, what writes to the residual stream and its norms are found
    by computation. The result is a checkpoint of the same class. Exit code 1 where an exact change does not leave the
    function as it is (nothing is written then), 2 for a change that the model cannot take.

    Args:
        model: the folder of a model or of a run, or a name on the hub
        out: a new folder, or an empty one
        change: what to change, listed below; can be repeated, in order
        insert: where new layers go (default: even, between the old ones)
        new: what new layers are: copies of the layer before (default), or as the class initializes them
        json: steps and parity report as one JSON object on stdout
    """
    refuse_existing(out)  # before anything is loaded
    with loading("grafting"):
        from isograd.interop.graft import graft_folder
        from isograd.interop.parity import ParityError

        try:
            with refusing(ValueError):
                made = graft_folder(model, out, *change, insert=insert, new=new)
        except ParityError as error:
            print(error.report)
            warn("graft", f"{'; '.join(error.report.failures())}; nothing is written")
            return 1
    if json:
        print_json(_plain(made) | {"model": str(out), "parity": json_.loads((out / "parity.json").read_text())})
    else:
        print(made)
        print(f"model: {out}")
    return 0


def _plain(made: "Grafted") -> dict[str, object]:
    return {"steps": [{"change": step.change, "said": step.said} for step in made.steps]}
