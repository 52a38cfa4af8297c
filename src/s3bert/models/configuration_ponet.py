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
        use_global_aggregation, use_segment_pooling, use_local_pooling: the three poolings, for ablations.
        cls_token_id, sep_token_id: the special tokens; the defaults are the uncased BERT vocabulary's.

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: what `EncoderConfig` refuses; an unknown segment rule; neither global aggregation nor segment pooling.

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
    use_global_aggregation: bool = True
    use_segment_pooling: bool = True
    use_local_pooling: bool = True
    cls_token_id: int | None = 101
    sep_token_id: int | None = 102
    auto_map: dict[str, str] = field(default_factory=lambda: auto_map("ponet", "PoNet"))

    def validate_segment_rule(self):
        """The rule is one of the two, and asks for one segment at least."""
        if self.segment_rule != "special" and not re.fullmatch(r"fixed:[1-9]\d*", self.segment_rule):
            raise ValueError(
                f"segment_rule = {self.segment_rule!r}: give 'special', or 'fixed:m' for m segments, as in 'fixed:64'."
            )

    def validate_poolings(self):
        """A token is multiplied with what one of two poolings gives."""
        if not (self.use_global_aggregation or self.use_segment_pooling):
            raise ValueError(
                "use_global_aggregation and use_segment_pooling are both False: nothing would be left to multiply a token with; keep one."
            )


__all__ = ["PoNetConfig"]
