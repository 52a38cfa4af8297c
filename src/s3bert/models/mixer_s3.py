"""S3Attention: the smoother and skeleton attention (Wang et al., "S3Attention: Improving Long Sequence Attention with
Smoothed Skeleton Sketching", IEEE JSTSP 2024). Equations and algorithms are cited by that paper's numbers.

    x -> Smoother (smoother.py) -> z -> Q, K, V -> skeleton attention (skeleton_attention.py) -> projection

This file puts the two parts together, for S3BERT and for the arena. They take plain arguments, no config, so that each can be built
and tested alone. All of them read (B, S, H) hidden states and an optional boolean mask (B, S), True at real tokens; what lies under
the mask has no influence on real tokens, and a mask of all ones gives what no mask gives.

    B batch    S length of this batch     N length the filter was trained for    F = N // 2 + 1 frequencies
    H hidden   h heads    p = H / h       r segments    s1 sampled rows (tokens)    s2 sampled columns (channels)
"""

from typing import cast

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import initialization as init

from .fast_attention import cheapest_attention_form, low_rank_attention, skip_kv_attention
from .fast_smoother import ExportableSmoother, cheapest_smoother_form, folded_smoother, kept_filter, short_smoother
from .numerics import zero_padding
from .position_norm import PositionBatchNorm
from .skeleton_attention import SkeletonAttention
from .smoother import Smoother


IMPLEMENTATIONS = ("auto", "direct", "export")


def build_s3(
    hidden_size: int,
    num_heads: int,
    max_length: int,
    *,
    num_segments: int,
    num_row_samples: int,
    num_column_samples: int,
    smoother_dropout_prob: float,
    attention_dropout_prob: float,
    smoother_norm: str,
    use_fourier_convolution: bool,
    use_convolution_stem: bool,
    use_row_attention: bool,
    use_column_attention: bool,
    landmark_seed: int,
    layer_index: int,
    implementation: str,
    landmark_length: int | None = None,
    landmark_sampling: str = "fixed",
    row_norm_init: float = 1.0,
    stem: str = "dense",
    stem_activation: str = "relu",
    filter_init: str = "normal",
    layer_norm_eps: float = 1e-12,
) -> tuple[Smoother, SkeletonAttention]:
    """The two parts of one layer; `landmark_length` is `max_length` where none is given.

    Raises:
        ValueError: one of r, s1, s2 is no whole number of at least 1; an unknown implementation; and as the two parts do.
    """
    counts = {
        "num_segments": num_segments,
        "num_row_samples": num_row_samples,
        "num_column_samples": num_column_samples,
    }
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} = {count!r}: give a whole number, at least 1.")
    if implementation not in IMPLEMENTATIONS:
        known = ", ".join(map(repr, IMPLEMENTATIONS))
        raise ValueError(f"implementation = {implementation!r}: S3Attention knows {known}.")
    smoother_class = ExportableSmoother if implementation == "export" else Smoother
    smoother = smoother_class(
        hidden_size,
        num_segments,
        max_length,
        norm=smoother_norm,
        dropout=smoother_dropout_prob,
        use_fourier_convolution=use_fourier_convolution,
        use_convolution_stem=use_convolution_stem,
        stem=stem,
        stem_activation=stem_activation,
        filter_init=filter_init,
        layer_norm_eps=layer_norm_eps,
    )
    attention = SkeletonAttention(
        hidden_size,
        num_heads,
        num_row_samples,
        num_column_samples,
        landmark_length or max_length,
        use_row_attention=use_row_attention,
        use_column_attention=use_column_attention,
        landmark_sampling=landmark_sampling,
        landmark_seed=landmark_seed,
        layer_index=layer_index,
        dropout=attention_dropout_prob,
        row_norm_init=row_norm_init,
        layer_norm_eps=layer_norm_eps,
    )
    return smoother, attention


def apply_s3(
    smoother: Smoother,
    attention: SkeletonAttention,
    projection: nn.Module,
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
    *,
    implementation: str = "auto",
    contiguous: bool = False,
    use_sdpa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """projection(attention(smoother(x))), (B, S, H), and row attention's weights (B, h, S, s1) or None.

    This is the one place that picks how they are computed: "direct" calls the modules; "auto" takes the cheapest exact form for the
    batch's shape; "export" has an `ExportableSmoother`, which is called, and the attention of "auto". A module that is not plain
    is called and not read.

    Args:
        numbers: (B, S), the tokens' positions for the per-position norm, see `PositionBatchNorm`; their places where absent.
        contiguous: promises that the mask gives each sequence one run of real tokens.
        use_sdpa: where queries are formed, which the low-rank form does without, row attention runs in torch's
            `scaled_dot_product_attention` and gives no weights.
    """
    fast = implementation != "direct"
    match _smoother_form(smoother, hidden_states, mask is None or contiguous) if fast else "direct":
        case "direct":
            smoothed = smoother(hidden_states, mask, numbers)
        case "short":
            smoothed = short_smoother(smoother, hidden_states, mask, numbers)
        case "folded":
            smoothed = folded_smoother(smoother, hidden_states, mask, numbers)
    match _attention_form(attention, projection, smoothed) if fast else "direct":
        case "direct":
            mixed, row_weights = attention(smoothed, mask, use_sdpa)
        case "skip_kv":
            mixed, row_weights = skip_kv_attention(attention, smoothed, mask, use_sdpa)
        case "low_rank":
            return low_rank_attention(attention, cast(nn.Linear, projection), smoothed, mask)
    return projection(mixed), row_weights


def _smoother_form(smoother: Smoother, hidden_states: torch.Tensor, contiguous: bool) -> str:
    batch, length, _ = hidden_states.shape
    if torch.compiler.is_exporting() or not is_plain(smoother, Smoother):  # one graph for all lengths
        return "direct"
    if smoother.use_convolution_stem and not is_plain(smoother.stem, nn.Conv1d):
        return "direct"
    if not (contiguous and smoother.use_fourier_convolution and smoother.use_convolution_stem):
        return "short"
    if kept_filter(smoother, length):
        return "folded"
    return cheapest_smoother_form(batch, length, smoother)


def _attention_form(attention: SkeletonAttention, projection: nn.Module, hidden_states: torch.Tensor) -> str:
    batch: int | None
    batch, length, _ = hidden_states.shape
    if not (is_plain(attention, SkeletonAttention) and is_plain(attention.key) and is_plain(attention.value)):
        return "direct"
    if torch.compiler.is_exporting():  # the graph is used at all sizes: the rule takes the landmarks' length
        batch, length = None, attention.landmark_length
    samples = attention.num_row_samples, attention.num_column_samples
    fused = torch.compiler.is_compiling() and hidden_states.device.type != "cpu"
    form = cheapest_attention_form(length, attention.head_size, *samples, batch, fused)
    if form == "low_rank":
        norms = [getattr(attention, name) for name in ("row_norm", "column_norm") if hasattr(attention, name)]
        plain = is_plain(projection) and is_plain(attention.query)
        # A head of column attention is a multiple of one channel then, and the variance of so few loses digits.
        degenerate = attention.use_column_attention and attention.num_column_samples == 1
        if degenerate or not (plain and all(is_plain(norm, nn.LayerNorm) for norm in norms)):
            return "skip_kv"
    return form


def is_plain(module: nn.Module, kind: type[nn.Module] = nn.Linear) -> bool:
    """Whether reading the weights of `module` is the same as calling it.

    It is not for adapters (LoRA), quantised or parametrised layers, sharded weights, modules with hooks of their own, and
    those whose `forward` was replaced (offloading does that). Hooks on all modules at once, as `register_module_forward_hook` and
    `FlopCounterMode` set them, do not count: what is measured is what runs, and they see no module that is read.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return (
        type(module) is kind
        and not any(hooks)
        and "forward" not in module.__dict__
        and not any(map(is_traceable_wrapper_subclass, module._parameters.values()))
    )


@torch.no_grad()
def initialize_s3(module: nn.Module) -> None:
    """For a model's `_init_weights`, after Transformers' own: what a module of S3 holds, where no checkpoint gives it.

    smoother.filter             Kaiming, fan-in, ReLU gain (Algorithm 2); normal, or as `filter_init` says
    smoother.stem, "depthwise"  weight uniform, of variance 1 / (3 fan-in), torch's own: BERT's is for hundreds of inputs, and this has 6
    smoother.norm ("batch")     weight 1, bias 0, running mean 0, running variance 1
    row_norm.weight             `row_norm_init`
    landmarks                   from `landmark_seed` and the layer's number, never from the global generator
    """
    if isinstance(module, Smoother):
        if module.use_fourier_convolution:
            module.initialize_filter(init)
        if module.use_convolution_stem and module.stem_groups > 1:
            init.kaiming_uniform_(module.stem.weight, 5**0.5)
    elif isinstance(module, PositionBatchNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
        init.zeros_(module.running_mean)
        init.ones_(module.running_var)
    elif isinstance(module, nn.LayerNorm):
        init.constant_(module.weight, cast(float, getattr(module, "first_gain", 1.0)))
    elif isinstance(module, SkeletonAttention):
        row_positions, column_indices = module.seeded_landmarks()
        init.copy_(module.row_positions, row_positions)
        init.copy_(module.column_indices, column_indices)


class S3Mixer(nn.Module):
    """S3Attention behind the mixers' contract (mixers.py).

    Args:
        hidden_size, num_heads, max_length, dropout: the contract's; dropout acts on both attentions' weights.
        num_segments, num_row_samples, num_column_samples: r, s1, s2. smoother_dropout_prob: after the convolution stem.
        smoother_norm: "batch" or "layer". use_...: Table 7's switches. landmark_seed: of the sampled tokens and channels.
        row_norm_init: first gain of row attention's norm. stem, stem_activation, filter_init: see `Smoother`.
        implementation: see `apply_s3`. layer_index: the layer's number.

    Raises:
        ValueError: see `build_s3`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        max_length: int,
        dropout: float = 0.0,
        num_segments: int = 8,
        num_row_samples: int = 8,
        num_column_samples: int = 8,
        smoother_dropout_prob: float = 0.0,
        smoother_norm: str = "batch",
        use_fourier_convolution: bool = True,
        use_convolution_stem: bool = True,
        use_row_attention: bool = True,
        use_column_attention: bool = True,
        landmark_seed: int = 0,
        row_norm_init: float = 1.0,
        stem: str = "dense",
        stem_activation: str = "relu",
        filter_init: str = "normal",
        implementation: str = "auto",
        layer_index: int = 0,
    ):
        super().__init__()
        self.implementation = implementation
        self.smoother, self.attention = build_s3(
            hidden_size,
            num_heads,
            max_length,
            num_segments=num_segments,
            num_row_samples=num_row_samples,
            num_column_samples=num_column_samples,
            smoother_dropout_prob=smoother_dropout_prob,
            attention_dropout_prob=dropout,
            smoother_norm=smoother_norm,
            use_fourier_convolution=use_fourier_convolution,
            use_convolution_stem=use_convolution_stem,
            use_row_attention=use_row_attention,
            use_column_attention=use_column_attention,
            landmark_seed=landmark_seed,
            row_norm_init=row_norm_init,
            stem=stem,
            stem_activation=stem_activation,
            filter_init=filter_init,
            layer_index=layer_index,
            implementation=implementation,
        )
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding."""
        parts = self.smoother, self.attention, self.output
        projected, _ = apply_s3(*parts, hidden_states, mask, implementation=self.implementation)
        return zero_padding(projected, mask)
