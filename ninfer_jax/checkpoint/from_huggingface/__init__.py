"""Hugging Face checkpoints into artifacts: facts, locations, recipe, plan, payload."""

from ninfer_jax.checkpoint.from_huggingface.convert import convert_checkpoint

__all__ = ["convert_checkpoint"]
