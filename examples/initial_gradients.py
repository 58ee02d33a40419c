"""Gradients of an encoder-decoder before its first update, layer by layer (Xiong et al. 2020; Liu et al. 2020).

    python examples/initial_gradients.py --placement post-ln --layers 12 --width 256 --seeds 0 1 2

Prints the factor per layer, going down, of the gradient's norm of W_2: (first / last)^(1 / (layers - 1)). In Post-LN it
is about sqrt(2/3) = 0.82 in the decoder, as in Xiong's appendix, and about 1 in the encoder, as Liu et al. say.
"""

import argparse
import statistics

import torch

from isograd.lab import PairsSection, TranslationModel, TranslationRun, TranslationTraining, load_task


def factors(placement: str, layers: int, width: int, seed: int, source: str) -> dict[str, float]:
    """Stack -> factor per layer, for one initialization and one batch of about 2,000 target tokens."""
    run = TranslationRun(
        seed=seed,
        model=TranslationModel(placement=placement, layers=layers, width=width, act="relu", share_embeddings=True),
        pairs=PairsSection(train=(source,), vocab_size=1000, longest=100),
        training=TranslationTraining(tokens=2048),
    )
    task = load_task(run)
    torch.manual_seed(seed)
    model = task.build(task.config()).train()
    model(**task.samples[0]).loss.backward()
    found = {}
    for tower in ("encoder", "decoder"):
        norms = [float(layer.ffn.branch.out.weight.grad.norm()) for layer in getattr(model, tower).layers]
        found[tower] = (norms[0] / norms[-1]) ** (1 / (layers - 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--placement", default="post-ln")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", default="numbers", help="a source of parallel text, as pairs.train takes it")
    options = parser.parse_args()
    found = [factors(options.placement, options.layers, options.width, s, options.data) for s in options.seeds]
    for tower in found[0]:
        values = [each[tower] for each in found]
        print(f"{tower}: {statistics.fmean(values):.3f} per layer ({', '.join(f'{v:.3f}' for v in values)})")


if __name__ == "__main__":
    main()
