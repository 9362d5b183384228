"""Callbacks: the base class for your own, and those that are ready to be used."""

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ready_callbacks import Curriculum, EvaluateOn, Histograms, Notify, RecordVideo, Stage
from rl_training.runtime.self_play import SelfPlay

__all__ = ["Callback", "Curriculum", "EvaluateOn", "Histograms", "Notify", "RecordVideo", "SelfPlay", "Stage"]
