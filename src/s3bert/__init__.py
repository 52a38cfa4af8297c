"""S3BERT, BERT with S3Attention, the PoNet it is compared with, the Long Range Arena encoder, the S3 forecaster and FMMformer's
language model.

Importing registers all with Transformers' auto classes. It imports neither Transformers nor torch: a class is imported when it
is first read, and registered when Transformers imports its auto classes (`auto_classes.py`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .auto_classes import register as _register
from .version import __version__


if TYPE_CHECKING:
    from .models.configuration_fmm import FmmConfig
    from .models.configuration_forecast import S3ForecastConfig
    from .models.configuration_lra import LraConfig
    from .models.configuration_ponet import PoNetConfig
    from .models.configuration_s3bert import S3BertConfig
    from .models.modeling_fmm import FmmCache, FmmForCausalLM, FmmModel
    from .models.modeling_forecast import S3ForecastModel
    from .models.modeling_lra import LraForMaskedLM, LraForSequenceClassification, LraModel
    from .models.modeling_ponet import (
        PoNetForMaskedLM,
        PoNetForMultipleChoice,
        PoNetForQuestionAnswering,
        PoNetForSequenceClassification,
        PoNetForTokenClassification,
        PoNetModel,
        PoNetPreTrainedModel,
    )
    from .models.modeling_s3bert import (
        S3BertForMaskedLM,
        S3BertForMultipleChoice,
        S3BertForQuestionAnswering,
        S3BertForSequenceClassification,
        S3BertForTokenClassification,
        S3BertModel,
        S3BertPreTrainedModel,
    )

__all__ = [
    "FmmCache",
    "FmmConfig",
    "FmmForCausalLM",
    "FmmModel",
    "LraConfig",
    "LraForMaskedLM",
    "LraForSequenceClassification",
    "LraModel",
    "PoNetConfig",
    "PoNetForMaskedLM",
    "PoNetForMultipleChoice",
    "PoNetForQuestionAnswering",
    "PoNetForSequenceClassification",
    "PoNetForTokenClassification",
    "PoNetModel",
    "PoNetPreTrainedModel",
    "S3BertConfig",
    "S3BertForMaskedLM",
    "S3BertForMultipleChoice",
    "S3BertForQuestionAnswering",
    "S3BertForSequenceClassification",
    "S3BertForTokenClassification",
    "S3BertModel",
    "S3BertPreTrainedModel",
    "S3ForecastConfig",
    "S3ForecastModel",
    "__version__",
]

# What a class's name begins with, and what the two files that hold its family end with.
_FAMILIES = {"S3Bert": "s3bert", "PoNet": "ponet", "Lra": "lra", "S3Forecast": "forecast", "Fmm": "fmm"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    family = next(family for prefix, family in _FAMILIES.items() if name.startswith(prefix))
    kind = "configuration" if name.endswith("Config") else "modeling"
    return getattr(import_module(f"{__name__}.models.{kind}_{family}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_register()
