"""Configuration of PoNet: BERT's fields, and where segments begin and end."""

import re
from dataclasses import field

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig, auto_map


@strict
class PoNetConfig(EncoderConfig):
    """Configuration of a PoNet model; the defaults are ponet-base's.

    Args:
        segment_rule: the segments of segment max-pooling where the caller gives none. "special": every [CLS] and [SEP]
            is one of its own, and each run of tokens between them is one. "fixed:m": m of equal width at
            `max_position_embeddings` tokens, each floor(max_position_embeddings / m) + 1 wide.
        exclude_special_from_pooling: keep [CLS] and [SEP] out of local and segment pooling, so that they see the global vector
            alone. The authors' name for it, `clsgsepg`, is taken too.
        cls_token_id, sep_token_id: the special tokens; the defaults are the uncased BERT vocabulary's.

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: what `EncoderConfig` refuses; an unknown segment rule.

    Examples:
        >>> from s3bert import PoNetConfig
        >>> config = PoNetConfig(segment_rule="fixed:64", max_position_embeddings=4096)
        >>> config.segment_rule, config.cls_token_id
        ('fixed:64', 101)
    """

    model_type = "ponet"
    attribute_map = {"clsgsepg": "exclude_special_from_pooling"}

    segment_rule: str = "special"
    exclude_special_from_pooling: bool = True
    cls_token_id: int | None = 101
    sep_token_id: int | None = 102
    auto_map: dict[str, str] = field(default_factory=lambda: auto_map("ponet", "PoNet"))

    def validate_segment_rule(self):
        """The rule is one of the two, and asks for one segment at least."""
        if self.segment_rule != "special" and not re.fullmatch(r"fixed:[1-9]\d*", self.segment_rule):
            raise ValueError(
                f"segment_rule = {self.segment_rule!r}: give 'special', or 'fixed:m' for m segments, as in 'fixed:64'."
            )


__all__ = ["PoNetConfig"]
