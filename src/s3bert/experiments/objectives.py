"""What language models are trained to predict."""

from dataclasses import dataclass

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM


@dataclass(frozen=True)
class Objective:
    """What a model is trained to predict.

    Args:
        name: for people. auto_class: makes a model of a configuration. special_tokens: whether blocks are [CLS] ids [SEP]. task: the Hub's
            name. metrics: of an evaluation. noun: what such a model is. predicted: the tokens a loss is of. command: of `s3bert`. module: that
            command's.
    """

    name: str
    auto_class: type
    special_tokens: bool
    task: str
    metrics: tuple[str, ...]
    noun: str
    predicted: str
    command: str
    module: str


MASKED = Objective(
    name="masked language modelling",
    auto_class=AutoModelForMaskedLM,
    special_tokens=True,
    task="fill-mask",
    metrics=("loss", "perplexity", "accuracy"),
    noun="encoder",
    predicted="masked tokens",
    command="pretrain",
    module="pretrain_mlm",
)
CAUSAL = Objective(
    name="causal language modelling",
    auto_class=AutoModelForCausalLM,
    special_tokens=False,
    task="text-generation",
    metrics=("loss", "perplexity"),
    noun="language model",
    predicted="the tokens of blocks, each read alone, after its first,",
    command="pretrain-clm",
    module="pretrain_clm",
)
