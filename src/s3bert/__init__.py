"""S3BERT: BERT with S3Attention, registered with Transformers' auto classes on import."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertTokenizer,
)

from .models.configuration_s3bert import S3BertConfig
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


AutoConfig.register(S3BertConfig.model_type, S3BertConfig)
AutoModel.register(S3BertConfig, S3BertModel)
AutoModelForPreTraining.register(S3BertConfig, S3BertForMaskedLM)
AutoModelForMaskedLM.register(S3BertConfig, S3BertForMaskedLM)
AutoModelForSequenceClassification.register(S3BertConfig, S3BertForSequenceClassification)
AutoModelForTokenClassification.register(S3BertConfig, S3BertForTokenClassification)
AutoModelForQuestionAnswering.register(S3BertConfig, S3BertForQuestionAnswering)
AutoModelForMultipleChoice.register(S3BertConfig, S3BertForMultipleChoice)
AutoTokenizer.register(S3BertConfig, tokenizer_class=BertTokenizer)

__all__ = [
    "S3BertConfig",
    "S3BertForMaskedLM",
    "S3BertForMultipleChoice",
    "S3BertForQuestionAnswering",
    "S3BertForSequenceClassification",
    "S3BertForTokenClassification",
    "S3BertModel",
    "S3BertPreTrainedModel",
    "__version__",
]
