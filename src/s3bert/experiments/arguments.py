"""Which model to pretrain, and where it goes: arguments of commands, which import no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from s3bert.arguments import Arguments, option


# Rows of FMMformer's Table 2: the kernels, and whether there is a band; None for softmax attention.
ATTENTIONS: Mapping[str, tuple[list[str], bool] | None] = {
    "softmax": None,
    "linear": (["elu"], False),
    "fast-weight": (["delta_elu"], False),
    "fast-weight+linear": (["delta_elu", "elu"], False),
    "band": ([], True),
    "linear+band": (["elu"], True),
    "fast-weight+band": (["delta_elu"], True),
    "2-linear+band": (["elu", "elu_flip"], True),
    "fast-weight+linear+band": (["delta_elu", "elu"], True),
}


@dataclass
class ModelArguments(Arguments):
    """Model: give exactly one of the first three; on the command line it takes the place of a file's."""

    model_name_or_path: str | None = option(
        free=True, one_of="model", help="checkpoint to continue from: a folder or a Hub id", default=None
    )
    config_name: str | None = option(
        free=True,
        one_of="model",
        help="configuration to start from scratch: a JSON file or recipe (model/s3bert-mini), a folder or a Hub id",
        default=None,
    )
    model_type: str | None = option(
        free=True,
        one_of="model",
        help="model type with its default configuration, from scratch: s3bert, bert, ...",
        default=None,
    )
    config_overrides: str | None = option(
        free=True, help="changes to the configuration, as `hidden_size=128,num_segments=4`", default=None
    )
    trust_remote_code: bool = option(help="run modelling code that comes with a checkpoint", default=False)


@dataclass
class HubArguments(Arguments):
    """Publishing."""

    push_to_hub: bool = option(free=True, help="upload the finished folder", default=False)
    hub_model_id: str | None = option(
        free=True, help="repository to upload to; the output folder's name by default", default=None
    )
