"""Calibrate in two processes, each with its part of a batch; what each ends with goes to a folder, the argument."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from isograd.diagnose.calibrate import calibrate
from isograd.transformer.sublayer import Sublayer
from tests.build import model, tokens


def built(head: str) -> Any:
    torch.manual_seed(0)
    return model(head, placement="admin", scale_embedding=True).train()


def batch_of(head: str, rows: slice) -> dict[str, Any]:
    given = {"input_ids": tokens(6, 9)[rows]}
    return given | ({"decoder_input_ids": tokens(6, 5, seed=1)[rows]} if head == "seq2seq" else {})


def whole(parameter: Any) -> Any:
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    rows = slice(0, 4) if rank == 0 else slice(4, 6)  # parts of different sizes
    mesh = init_device_mesh("cpu", (2,))
    for head in ("causal", "seq2seq"):
        for way in ("replicas", "layers", "root"):
            network = built(head)
            if way == "layers":
                for layer in [m for m in network.modules() if type(m).__name__ == "Layer"]:
                    fully_shard(layer, mesh=mesh)
            if way != "replicas":
                fully_shard(network, mesh=mesh)
            options = {"distributed": True} if way == "replicas" else {}
            skips = calibrate(network, batch_of(head, rows), **options)
            held = [whole(m.combine.skip.weight) for m in network.modules() if isinstance(m, Sublayer)]
            others = [whole(p).clone() for n, p in network.named_parameters() if "combine.skip" not in n]
            torch.save({"skips": skips, "held": held, "others": others}, folder / f"{head}-{way}-{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
