"""ninfer_jax: an inference engine for Qwen3.8-27B in JAX, Flax and Pallas.

Importing the package imports neither jax nor any other heavy library.
"""

__version__ = "0.1.0"
