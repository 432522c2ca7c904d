"""A codec of one module: gradients travel with their signs turned round."""

from __future__ import annotations

from autotune.runtime.codecs.protocol import SUM, Identity, Round
from autotune.workloads.plan.codecs import CODECS, CodecKind


class Negated(Identity):
    name = "negated"

    def encode(self, flat):
        return Round(kind=SUM, tensors=(-flat,))

    def decode(self, received, flat):
        flat.copy_(-received[0])


def make(_compression, _buffer):
    return Negated()


CODECS.register(
    CodecKind(
        name="negated",
        text="gradients with their signs turned round",
        made_by="tests.additions.toy_codec:make",
        rounds=lambda sent: ((SUM, sent.num_values * sent.element_bytes),),
        is_lossless=True,
        is_one_round=True,
    )
)
