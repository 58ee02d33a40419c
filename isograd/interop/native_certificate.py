"""The certificate of an export to a class of transformers: what was loaded from the folder beside the original.

Two classes need help to be measured in fp64, and none to be used: RMSNorms of transformers compute in float32 whatever
they read, so torch's own stand in for them there; FSMT's causal mask overflows in fp64, so its decoder reads a token at
a time, as it does when it generates.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import FSMTForConditionalGeneration, PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from isograd.interop.certificate import Certificate, certify
from isograd.interop.native import Plan, built, plan
from isograd.interop.running import Side
from isograd.interop.sample import Sample
from isograd.models import IsogradPreTrainedModel


def certify_native(
    model: IsogradPreTrainedModel, done: Plan, native: PreTrainedModel, sample: Sample | None = None, **options: Any
) -> Certificate:
    """The model beside its native class.

    Where weights were folded or scaled on the way, fp64 is measured on what becomes of the fp64 copy, in the class and
    the configuration that were loaded, before any rounding to the stored precision, which the fp32 row shows.

    Args:
        done: what `plan` gave for the model.
        native: `built(done)`, or what was loaded of it.
        options: of `certify`.
    """
    exact = native if done.exact else _in_double(model, done, native)
    notes = [*done.notes, *options.pop("notes", ())]
    if not done.exact:
        notes.append("Its fp64 row is of the fp64 copy, before weights are rounded to what is stored.")
    return certify(
        model,
        native_side(native, exact),
        sample,
        about=f"{type(model).__name__} ({model.config.placement}) and {done.class_name}",
        notes=notes,
        **options,
    )


def _in_double(model: IsogradPreTrainedModel, done: Plan, native: PreTrainedModel) -> PreTrainedModel:
    double = built(plan(copy.deepcopy(model).double(), done.name))
    made = type(native).from_pretrained(
        None, config=copy.deepcopy(native.config), state_dict=double.state_dict(), dtype=torch.float64
    )
    assert isinstance(made, PreTrainedModel)
    return made.eval()


def native_side(native: PreTrainedModel, exact: PreTrainedModel | None = None) -> Side:
    """A native class as one side of a comparison; `exact` stands for it in fp64."""
    exact = native if exact is None else exact
    if isinstance(native, FSMTForConditionalGeneration):
        return {"fp64": Stepwise(exact), "fp32": native, "bf16": native}
    return {"fp64": with_exact_norms(exact), "fp32": native, "bf16": native}


def with_exact_norms(native: PreTrainedModel) -> PreTrainedModel:
    """The same with norms that compute in the precision of what they read; the model itself where it has such ones."""
    if not any(_rounds(module) for module in native.modules()):
        return native
    made = copy.deepcopy(native)
    for parent in list(made.modules()):
        for name, module in list(parent.named_children()):
            if _rounds(module):
                setattr(parent, name, _exact(module))
    return made


class Stepwise(nn.Module):
    """An encoder-decoder whose decoder reads one token after the other, with a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, **_: Any) -> Any:
        memory = self.model.get_encoder()(input_ids, attention_mask=attention_mask)
        past, found = None, []
        for token in decoder_input_ids.split(1, dim=1):
            out = self.model(
                encoder_outputs=memory,
                attention_mask=attention_mask,
                decoder_input_ids=token,
                past_key_values=past,
                use_cache=True,
            )
            past = out.past_key_values
            found.append(out.logits)
        return Seq2SeqLMOutput(logits=torch.cat(found, dim=1))

    def can_generate(self) -> bool:
        return True

    def generate(self, **options: Any) -> Any:
        self.model.generation_config = self.generation_config
        return self.model.generate(**options)


def _rounds(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")


def _exact(norm: Any) -> nn.RMSNorm:
    made = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=norm.weight.dtype)
    made.weight = norm.weight
    return made
