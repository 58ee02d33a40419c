"""A large random model in and out: seconds, peak memory, and whether the weights came back bit for bit.

    python -m benchmarks.large_in_and_out --out /tmp/large --layers 22 --width 2048     # 1.1 billion, 13 GB of disk

Four processes, one after the other: the first writes the model in files of 1 GB, the second is `isograd import`, the
third `isograd export`, the fourth reads both folders tensor by tensor.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

_MADE = """
import sys, torch, transformers
torch.set_default_dtype(getattr(torch, sys.argv[2]))
torch.manual_seed(0)
cls = getattr(transformers, sys.argv[3])
model = cls(cls.config_class(**eval(sys.argv[4])))
print(sum(p.numel() for p in model.parameters()))
model.save_pretrained(sys.argv[1], max_shard_size="1GB")
"""
_READ = """
import sys
from pathlib import Path
import torch
from safetensors import safe_open

def places(folder):
    return {name: path for path in Path(folder).glob("*.safetensors") for name in safe_open(path, "pt").keys()}

def read(places, name):
    with safe_open(places[name], "pt") as file:
        return file.get_tensor(name)

first, second = map(places, sys.argv[1:])
same = sum(torch.equal(read(first, name), read(second, name)) for name in first if name in second)
print(same, len(first), len(second))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--cls", default="LlamaForCausalLM")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    folders = [options.out / name for name in ("before", "ours", "back")]
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    width = options.width
    shape = {"vocab_size": 32000, "hidden_size": width, "intermediate_size": width * 11 // 4}
    shape |= {"num_hidden_layers": options.layers, "num_attention_heads": width // 64, "max_position_embeddings": 2048}
    if options.cls.startswith("Llama"):
        shape["num_key_value_heads"] = width // 256
    before, ours, back = map(str, folders)
    parameters, _ = run("-c", _MADE, before, options.dtype, options.cls, str(shape))
    _, imported = run("-m", "isograd", "import", before, "--out", ours)
    to = {"LlamaForCausalLM": "llama", "GPTNeoXForCausalLM": "gpt-neox"}[options.cls]
    _, exported = run("-m", "isograd", "export", ours, "--out", back, "--to", to)
    same, _ = run("-c", _READ, before, back)
    content = {"cls": options.cls, "dtype": options.dtype, "parameters": int(parameters), "bit-equal": same}
    content |= {"in": imported, "out": exported, "gib": round(size(folders[0]) / 2**30, 2)}
    print(json.dumps(content, indent=2))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def run(*words: str) -> tuple[str, dict[str, float]]:
    """The last line that a process printed, and its seconds and peak memory in GiB."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words} failed: {said}")
    numbers = {"seconds": round(time.monotonic() - started, 1), "peak_gib": round(used.ru_maxrss / 2**20, 2)}
    numbers["cpu_seconds"] = round(used.ru_utime + used.ru_stime, 1)
    return said.strip().splitlines()[-1] if said.strip() else "", numbers


if __name__ == "__main__":
    main()
