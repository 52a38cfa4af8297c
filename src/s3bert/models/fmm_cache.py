"""FMMformer's state of constant size, as Transformers' `generate` and its beams handle a cache."""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from .configuration_fmm import FmmConfig
from .fmm_state import FmmState


class FmmCacheLayer(CacheLayerMixin):
    """One layer's `FmmState`."""

    def __init__(self, window: int, num_kernels: int):
        super().__init__()
        self.state = FmmState(window, num_kernels)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The state begins when it is first extended."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: torch.Tensor | None,
        **kwargs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError(
            "Attention that needs all keys and values cannot use this cache: it keeps none but the last."
        )

    def get_seq_length(self) -> int:
        return self.state.places

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.state.places + query_length, 0

    def get_max_length(self) -> int:
        return -1  # none

    def reset(self) -> None:
        self.state.reset()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.state.map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.state.map(lambda tensor: tensor[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.state.map(lambda tensor: tensor.repeat_interleave(repeats, 0))


class FmmCache(Cache):
    """The states of all layers, of one size however many tokens were read; `FmmModel` makes one where it is given none.

    Args:
        config: of the model.

    Raises:
        ValueError: a configuration of softmax attention, which keeps every key and value: Transformers' `DynamicCache` is its cache.

    Examples:
        >>> import torch
        >>> from s3bert import FmmCache, FmmConfig, FmmModel
        >>> model = FmmModel(FmmConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)).eval()
        >>> cache = FmmCache(model.config)
        >>> model(torch.arange(50)[None], past_key_values=cache).past_key_values.layers[0].state.keys.shape
        torch.Size([1, 2, 19, 16])
    """

    def __init__(self, config: FmmConfig):
        if config.bandwidth is None:
            raise ValueError(
                "bandwidth = None is softmax attention, which keeps every key and value: give it a DynamicCache."
            )
        self.sizes = cache_sizes(config)
        window, num_kernels = max(config.bandwidth - 1, 0), len(config.kernels)
        super().__init__(layers=[FmmCacheLayer(window, num_kernels) for _ in range(config.num_hidden_layers)])


def new_cache(config: FmmConfig) -> Cache:
    """An empty one for a model: of constant size, or for softmax attention one that grows."""
    return DynamicCache(config=config) if config.bandwidth is None else FmmCache(config)


def attention_past(cache: Cache, layer_index: int) -> FmmState | Callable:
    """What a layer's attention takes of its model's cache: its state, or for softmax attention what extends keys and values."""
    if isinstance(cache, DynamicCache):
        return partial(cache.update, layer_idx=layer_index)
    return cast(FmmCacheLayer, cache.layers[layer_index]).state


def tokens_read(cache: Cache) -> torch.Tensor | int:
    """How many real tokens a cache has read of each sequence, (B, 1); a `DynamicCache` counts padding too, and 0 is of all alike."""
    places = cache.get_seq_length()
    if isinstance(cache, DynamicCache) or not places:
        return places
    return cast(torch.Tensor, cast(FmmCacheLayer, cache.layers[0]).state.tokens)[:, None]


def cache_sizes(config: FmmConfig) -> dict[str, object]:
    """What a cache and its model must agree on."""
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size", "bandwidth", "kernels")
    return {name: getattr(config, name) for name in names}


def check_cache(cache: Cache, config: FmmConfig, batch: int) -> None:
    """
    Raises:
        ValueError: a cache of another model, or of another number of sequences than `batch`.
    """
    if config.bandwidth is None:
        heads, layers = config.num_attention_heads, getattr(cache, "layers", [])
        grows = isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in layers)
        keys = [layer.keys for layer in layers if layer.get_seq_length()] if grows else []
        shapes = {(held.shape[1], held.shape[3]) for held in keys}
        fits = (
            grows and len(layers) in (0, config.num_hidden_layers) and shapes <= {(heads, config.hidden_size // heads)}
        )
        rows, remedy = {len(held) for held in keys}, "DynamicCache(config=model.config)"
    else:
        # Not by class: code that travelled with a checkpoint has an FmmCache of its own.
        fits, remedy = getattr(cache, "sizes", None) == cache_sizes(config), "FmmCache(model.config)"
        read = tokens_read(cache) if fits else 0
        rows = {len(read)} if isinstance(read, torch.Tensor) else set()
    if not fits:
        raise ValueError(
            f"past_key_values is a {type(cache).__name__} of another model; this one has {cache_sizes(config)}: give {remedy}, or none."
        )
    if rows - {batch}:
        raise ValueError(
            f"past_key_values holds {max(rows)} sequences and the input {batch}: give the cache of these sequences, or none."
        )
