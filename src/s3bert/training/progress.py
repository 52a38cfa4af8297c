"""What a run has done so far, as its checkpoints carry it beside tensors."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Counts and losses of all steps, those of the window since the last log record, and what evaluations found. Times are of training
    alone, without evaluation and saving."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0  # over all steps
    window_loss: float = 0.0  # since the last log record
    window_steps: int = 0
    window_tokens: int = 0
    window_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)
    best_step: int = 0
    evaluations_since_best: int = 0

    @property
    def mean_loss(self) -> float:
        """Over all steps."""
        return self.loss_sum / max(1, self.step)

    def add_step(self, tokens: int) -> None:
        """Counts one more step; its loss and its time come later, with others'."""
        self.step += 1
        self.tokens += tokens
        self.window_steps += 1
        self.window_tokens += tokens

    def add_loss(self, loss: float) -> None:
        """Adds the losses of some steps, summed."""
        self.loss_sum += loss
        self.window_loss += loss

    def add_seconds(self, seconds: float) -> None:
        """Adds the time of some steps."""
        self.seconds += seconds
        self.window_seconds += seconds

    def close_window(self) -> tuple[float, float]:
        """The mean loss of the window's steps and its tokens per second; the next window begins."""
        loss, speed = self.window_loss / self.window_steps, self.window_tokens / max(self.window_seconds, 1e-9)
        self.window_loss = self.window_seconds = 0.0
        self.window_steps = self.window_tokens = 0
        return loss, speed

    def add_evaluation(self, metrics: dict[str, float], watched: str, greater_is_better: bool) -> None:
        """Takes the metrics of an evaluation at this step, the best one or not by the one that is watched.

        Raises:
            ValueError: there is no such metric.
        """
        self.metrics = metrics
        if watched not in metrics:
            raise ValueError(f"metric_for_best_model = {watched!r} is not among the metrics {', '.join(metrics)}.")
        sign = 1 if greater_is_better else -1
        if not self.best_metrics or sign * metrics[watched] > sign * self.best_metrics[watched]:
            self.best_metrics, self.best_step, self.evaluations_since_best = metrics, self.step, 0
        else:
            self.evaluations_since_best += 1

    def forget_best(self) -> None:
        """The best evaluation is one of those to come."""
        self.best_metrics, self.best_step, self.evaluations_since_best = {}, 0, 0
