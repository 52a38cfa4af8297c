"""The size that all measured encoders share: arguments of a command, which import no torch."""

from dataclasses import dataclass
from typing import Literal

from s3bert.arguments import Arguments, option


@dataclass(unsafe_hash=True)
class EncoderSize(Arguments):
    """Encoders: what all of them share."""

    hidden_size: int = option(least=1, help="width", default=256)
    num_hidden_layers: int = option(least=1, help="layers", default=4)
    num_attention_heads: int = option(least=1, help="heads", default=4)
    intermediate_size: int = option(least=1, help="width of the feed-forward", default=1024)
    vocab_size: int = option(
        least=2, help="word pieces; few, so that their table does not drown the rest", default=1024
    )
    dropout: float = option(least=0, below=1, help="rate of every dropout of a model", default=0.0)
    num_segments: int = option(least=1, help="S3BERT's r", default=8)
    num_row_samples: int = option(least=1, help="S3BERT's s1", default=8)
    num_column_samples: int = option(least=1, help="S3BERT's s2", default=8)
    smoother_norm: Literal["batch", "layer"] = option(help="S3BERT's norm in the smoother", default="batch")
    dtype: Literal["float32", "bfloat16", "float16"] = option(help="of weights and activations", default="float32")

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_attention_heads", "num_segments"):
            if self.hidden_size % getattr(self, name):
                raise ValueError(f"{name} = {getattr(self, name)} does not divide hidden_size = {self.hidden_size}.")
