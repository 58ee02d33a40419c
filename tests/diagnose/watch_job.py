"""Trainings that are watched in several processes: `torchrun .. watch_job.py FOLDER ddp fsdp`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import isograd
from isograd import IsogradConfig, IsogradForCausalLM

STEPS = 12


def build() -> IsogradForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 18, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 31}
    return IsogradForCausalLM(IsogradConfig(placement="admin-closed", max_position_embeddings=12, **shape))


def spread(model: IsogradForCausalLM, way: str) -> nn.Module:
    if way == "ddp":
        return DistributedDataParallel(model)
    if way == "fsdp":
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def train(folder: Path, way: str, rank: int = 0, processes: int = 1) -> None:
    """Twelve steps of a share of each batch; in the last but one the loss of the last process is not a number."""
    model = build()
    watch = isograd.watch(model, folder=folder, updates=True)  # before it is sharded: its parameters are others then
    trained = spread(model, way)
    optimizer = torch.optim.SGD(trained.parameters(), 0.05)
    draw = torch.Generator().manual_seed(1)
    for step in range(1, STEPS + 1):
        ids = torch.randint(31, (8, 12), generator=draw).chunk(processes)[rank]
        loss = trained(input_ids=ids, labels=ids).loss
        if step == STEPS - 1 and rank == processes - 1:
            loss = loss * float("nan")
        loss.backward()
        watch.step(loss, batch={"input_ids": ids})
        nn.utils.clip_grad_norm_(trained.parameters(), 0.1)
        if step < STEPS - 1:
            optimizer.step()
        optimizer.zero_grad()
    watch.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for way in sys.argv[2:]:
        train(Path(sys.argv[1]) / way, way, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
