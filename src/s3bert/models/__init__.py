"""The networks. Files here import only torch, transformers and one another, by `from .name import Thing`, because
bundle.py merges them into a checkpoint's two code files by following exactly that form.

Importing any of them lets saved folders carry their code.
"""

from s3bert.version import __version__

from .bundle import carry_code
from .configuration_fmm import FmmConfig
from .configuration_forecast import S3ForecastConfig
from .configuration_lra import LraConfig
from .configuration_ponet import PoNetConfig
from .configuration_s3bert import S3BertConfig


CONFIG_CLASSES = (S3BertConfig, PoNetConfig, LraConfig, S3ForecastConfig, FmmConfig)

for _config in CONFIG_CLASSES:
    carry_code(_config, __version__)
