"""A random Llama of a billion parameters, 16 to 24 layers: time, peak memory, and logits of stock transformers.

    python benchmarks/graft_large.py --out /tmp/large          # 13 GB of disk, 10 GB of memory

Three processes, one after the other: the first writes the model, the second is `isograd graft`, the third loads both
with transformers alone, one at a time, and compares their logits.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

SHAPE = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
}
_MADE = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_default_dtype(getattr(torch, sys.argv[2]))
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(**eval(sys.argv[3])))
print(sum(p.numel() for p in model.parameters()))
model.save_pretrained(sys.argv[1])
"""
_READ = """
import sys, torch
from transformers import AutoModelForCausalLM
ids = torch.randint(3, 32000, (2, 32), generator=torch.Generator().manual_seed(0))
found = []
for folder in sys.argv[1:]:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    with torch.inference_mode():
        found.append(model(ids).logits)
    layers = model.config.num_hidden_layers
    del model
print(layers, float((found[0] - found[1]).abs().max()), float(found[0].abs().max()), torch.equal(*found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    before, after = options.out / "before", options.out / "after"
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    parameters = int(run("made", "-c", _MADE, str(before), options.dtype, str(SHAPE))[0])
    _, graft = run("grafted", "-m", "isograd", "graft", str(before), "--out", str(after), "--change", "layers=24")
    said, _ = run("read", "-c", _READ, str(before), str(after))
    layers, difference, largest, equal = said.split()
    report = json.loads((after / "parity.json").read_text())
    rows = {"parameters": parameters, "layers": int(layers), "difference": float(difference), "equal": equal == "True"}
    rows |= {"largest": float(largest), "parity": report["passed"], "dtype": options.dtype} | graft
    rows |= {"bytes": sum(f.stat().st_size for f in after.glob("*.safetensors"))}
    print(json.dumps(rows, indent=2))


def run(what: str, *words: str) -> tuple[str, dict[str, float]]:
    """The last line that a process printed, and its seconds, processor seconds and peak memory in GB."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    numbers = {
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, 1),
        "largest_child_gb": round(used.ru_maxrss / 1e6, 2),  # of all children so far
    }
    print(what, numbers, file=sys.stderr)
    return done.stdout.strip().splitlines()[-1], numbers


if __name__ == "__main__":
    main()
