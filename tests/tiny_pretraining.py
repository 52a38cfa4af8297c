"""A masked-LM pretraining of seconds on made-up text, for tests of what happens to a run."""

import time
from pathlib import Path

import numpy as np
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import BertTokenizer, set_seed

from s3bert import S3BertConfig, S3BertForMaskedLM
from s3bert.data.steps import PackedSteps
from s3bert.tasks.mlm import Masking, MlmBatches, MlmEvaluation, ShortSequences
from s3bert.training.arguments import TrainingConfig
from s3bert.training.loop import train


LENGTH = 24
SIZES = dict(vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
SIZES |= dict(max_position_embeddings=LENGTH, num_segments=4, num_row_samples=3, num_column_samples=3)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, smoother_dropout_prob=0.0)
TIMINGS = ("seconds", "tokens_per_second", "mfu")


class MadeUpBlocks:
    """Fifty blocks of counting words: enough for losses that move."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> np.ndarray:
        start = np.random.default_rng(index).integers(90)
        return np.concatenate([[2], 5 + (start + np.arange(LENGTH - 2)) % 94, [3]]).astype(np.uint16)

    def draw(self, seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(self))


def tokenizer() -> BertTokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]
    return BertTokenizer(vocab={word: i for i, word in enumerate(words)})


def pretrain(
    output_dir: Path, model_settings: dict | None = None, slowness: float = 0.0, around: dict | None = None, **settings
):
    """A small pretraining run, its first steps on half blocks; `slowness` seconds a step leave room to be killed in; `around` holds
    what `train` calls around steps."""
    settings = {"max_train_steps": 60, "logging_steps": 1, "save_steps": 3, "eval_steps": 5} | settings
    settings = {"per_device_train_batch_size": 4, "learning_rate": 3e-3, "num_warmup_steps": 2} | settings
    config = TrainingConfig(output_dir=str(output_dir), seed=7, report_to="none", **settings)
    set_seed(config.seed)
    model = S3BertForMaskedLM(S3BertConfig(**(SIZES | dict(sparse_prediction=True) | (model_settings or {}))))
    masking = Masking.for_tokenizer(tokenizer())
    short = ShortSequences([LENGTH // 2], config.schedule_steps(config.max_train_steps) // 2, LENGTH)
    steps = PackedSteps(MadeUpBlocks(), config.sequences_per_step, config.seed)
    batches = MlmBatches(steps, masking, short)
    if slowness:
        register_optimizer_step_pre_hook(lambda *_: time.sleep(slowness))
    held_out = MlmEvaluation(MadeUpBlocks(), masking, 8, max_blocks=10)
    return train(model, batches, config, held_out, tokenizer(), **around or {})


def exact(records: list[dict]) -> list[dict]:
    """Log records without what a clock measured."""
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in records]
