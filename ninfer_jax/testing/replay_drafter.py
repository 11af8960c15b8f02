"""A drafter that proposes what was recorded: known acceptance without a trained model."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from ninfer_jax.engine.acceptance import Proposal
from ninfer_jax.engine.drafters import DrafterWeights


@dataclasses.dataclass(frozen=True)
class ReplayDrafter:
    """Implements `ninfer_jax.engine.drafters.Drafter` over `record[slot, position]`."""

    draft_tokens: int
    name = "replay"
    taps = ()
    lag = 0

    @property
    def room(self) -> int:
        """See `Drafter.room`."""
        return self.draft_tokens + 1

    def feature_width(self, config) -> int:
        """See `Drafter.feature_width`; nothing is read."""
        return 1

    def state_spec(self, config, shape):
        """See `Drafter.state_spec`; nothing is kept."""
        return ()

    def features(self, decoder, hidden, tapped):
        """See `Drafter.features`."""
        return jnp.zeros((*hidden.shape[:2], 1), hidden.dtype)

    def absorb(self, decoder, weights, state, columns):
        """See `Drafter.absorb`."""
        return state, None

    def propose(self, decoder, weights, state, anchors, thought, sampling):
        """The tokens recorded behind each anchor."""
        position = anchors.position[:, None] + 1 + jnp.arange(self.draft_tokens)
        rows = weights.module["record"].at[anchors.slots].get(mode="clip")
        return Proposal(jnp.take_along_axis(rows, position, axis=1, mode="clip")), state


def replay_drafter(record: np.ndarray, draft_tokens: int) -> tuple[ReplayDrafter, DrafterWeights]:
    """A drafter for `record` [slots, positions] of token ids."""
    weights = DrafterWeights({"record": jnp.asarray(record, jnp.int32)})
    return ReplayDrafter(draft_tokens), weights
