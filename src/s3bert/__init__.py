"""S3BERT, BERT with S3Attention, the PoNet it is compared with, the Long Range Arena encoder and the S3 forecaster; importing
registers all with Transformers' auto classes, and lets saved folders carry their code."""

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer

from .models import modeling_ponet, modeling_s3bert
from .models.bundle import carry_code
from .models.configuration_encoder import CLASS_SUFFIXES
from .models.configuration_forecast import S3ForecastConfig
from .models.configuration_lra import LraConfig
from .models.configuration_ponet import PoNetConfig
from .models.configuration_s3bert import S3BertConfig
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
from .version import __version__


for _config, _module, _name in ((S3BertConfig, modeling_s3bert, "S3Bert"), (PoNetConfig, modeling_ponet, "PoNet")):
    AutoConfig.register(_config.model_type, _config)
    AutoTokenizer.register(_config, tokenizer_class=BertTokenizer)
    for _auto_class, _suffix in CLASS_SUFFIXES.items():
        getattr(transformers, _auto_class).register(_config, getattr(_module, _name + _suffix))

AutoConfig.register(LraConfig.model_type, LraConfig)
transformers.AutoModel.register(LraConfig, LraModel)
transformers.AutoModelForMaskedLM.register(LraConfig, LraForMaskedLM)
transformers.AutoModelForSequenceClassification.register(LraConfig, LraForSequenceClassification)

AutoConfig.register(S3ForecastConfig.model_type, S3ForecastConfig)
transformers.AutoModel.register(S3ForecastConfig, S3ForecastModel)

for _config in (S3BertConfig, PoNetConfig, LraConfig, S3ForecastConfig):
    carry_code(_config, __version__)

__all__ = [
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
