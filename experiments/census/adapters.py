"""Does edgewise still read models right that carry an adapter or eight-bit weights?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from edgewise.study import Claim, Result

from .batches import find_batch
from .common import SENTENCES, bars, judged
from .huggingface import build, preload
from .trial import Made, labels_of, try_model

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = SENTENCES
CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "bert": "BertForMaskedLM",
    "mistral": "MistralForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "vit": "ViTForImageClassification",
    "olmo2": "Olmo2ForCausalLM",
    "gptj": "GPTJForCausalLM",
}


def lora(model: nn.Module) -> nn.Module:
    """Low-rank updates beside every linear map, as drawn: their second factor is zero."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))  # type: ignore[arg-type]


def trained_lora(model: nn.Module) -> nn.Module:
    """The same with a second factor that is not zero, as after training."""
    adapted = lora(model)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    return adapted


def ia3(model: nn.Module) -> nn.Module:
    """Learned factors on keys, values and the hidden layer."""
    from peft import IA3Config, get_peft_model

    return get_peft_model(model, IA3Config())  # type: ignore[arg-type]


def eight_bit(model: nn.Module) -> nn.Module:
    """Every linear map of the blocks in eight bits, as bitsandbytes stores it."""
    from bitsandbytes.nn import Linear8bitLt

    linear = [(name, m) for name, m in model.named_modules() if type(m) is nn.Linear and "head" not in name]
    for name, module in linear:
        small = Linear8bitLt(
            module.in_features, module.out_features, module.bias is not None, has_fp16_weights=False
        )
        small.load_state_dict(module.state_dict())
        model.set_submodule(name, small.to("cpu"))
    return model


ADAPTERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "LoRA": lora,
    "trained LoRA": trained_lora,
    "IA3": ia3,
    "eight bits": eight_bit,
}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    types = CLASSES if scale == "full" else ["gpt2"]
    return [{"type": name, "adapter": adapter} for name in types for adapter in ADAPTERS]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    preload()

    def make() -> Made:
        model = build({**case, "class": CLASSES[case["type"]]})
        batch, said = find_batch(model)  # of the bare model: an adapter's forward takes anything
        return ADAPTERS[case["adapter"]](model).eval(), batch, said

    return try_model(make, [_moved(label, case["adapter"]) for label in labels_of(case["type"])])


def _moved(label: dict[str, Any], adapter: str) -> dict[str, Any]:
    """Peft moves the stacks to another path."""
    if "name" not in label or adapter == "eight bits":
        return label
    return label | {"name": f"base_model.model.{label['name']}"}


def claim(results: Sequence[Result]) -> Claim:
    return judged(results, "models with adapters")


def draw(results: Sequence[Result]) -> Figure:
    return bars(results, "models with adapters")
