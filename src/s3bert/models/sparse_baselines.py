"""Transformers' BERT and FNet for comparisons: their masked-LM head decodes labelled positions alone.

S3BERT and PoNet do so by `sparse_prediction`; at small sizes decoding every position takes 40% of a step, and times would compare
decoders. Loss and gradients are Transformers' own. Names are too, so that a saved folder is one of Transformers'.

FNet's Fourier transform is in float32 here: CUDA has none in bfloat16, and in float16 for powers of two alone.
"""

from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform, FNetFourierTransform

from .heads import labelled_positions, mean_cross_entropy
from .numerics import at_least_float32


Model = TypeVar("Model", bound=transformers.PreTrainedModel)

if TYPE_CHECKING:  # what it is mixed into
    _MaskedLM = transformers.PreTrainedModel
else:
    _MaskedLM = object


class Float32FourierTransform(FNetBasicFourierTransform):
    """FNet's transform, (B, S, H) -> (B, S, H) of the input's dtype, in float32 whatever that is."""

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor]:
        (mixed,) = super().forward(at_least_float32(hidden_states))
        return (mixed.to(hidden_states.dtype),)


def transform_in_float32(model: Model) -> Model:
    """The model itself, an FNet with its transforms in float32 and any other as it is."""
    for module in model.modules():
        if isinstance(module, FNetFourierTransform):
            module.self = Float32FourierTransform(model.config)
    return model


class LabelledPositions(_MaskedLM):
    """To stand before a masked-LM class with an encoder and a head `cls`; without labels it is that class."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        max_predictions: int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """With labels (B, S), in training or with `max_predictions`, `logits` are (P, V): see `MaskedLM.forward`."""
        if labels is None or not (self.training or max_predictions is not None):
            return super().forward(input_ids, labels=labels, **kwargs)
        hidden_states = self.base_model(input_ids, **kwargs)[0]  # (B, S, H)
        hidden_states, labels = labelled_positions(hidden_states, labels, max_predictions)
        logits = self.get_submodule("cls")(hidden_states)
        return MaskedLMOutput(loss=mean_cross_entropy(logits, labels, None, "vocab_size"), logits=logits)


class BertForMaskedLM(LabelledPositions, transformers.BertForMaskedLM):
    pass


class FNetForMaskedLM(LabelledPositions, transformers.FNetForMaskedLM):
    def __init__(self, config: transformers.FNetConfig):
        super().__init__(config)
        # Nothing reads Transformers' pooler here: it would be saved as it was drawn, and stop DistributedDataParallel.
        self.fnet.pooler = None
        transform_in_float32(self)


SPARSE_BASELINES = {"bert": BertForMaskedLM, "fnet": FNetForMaskedLM}
