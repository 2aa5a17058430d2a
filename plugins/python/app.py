"""Pace in Python: close when every live island has offered, or `patience_ms` (default 2000) after the round's first offer.

The pace role of wit/policy.wit, through componentize-py. A pace may be slow: it is asked a few times a round, and no tensor passes through it. It remembers
nothing from one call to the next, as the contract demands.
"""

import json

from componentize_py_types import Err
from wit_world.exports.pace import Decision, Decision_Close, Decision_Wait, View

# How soon to look again while there is no quorum. Offers wake the host anyway.
IDLE_MS = 1_000
HOUR_MS = 3_600_000


def patience_ms(config: bytes) -> int:
    try:
        fields = json.loads(config or b"{}")
    except ValueError:
        raise Err("the configuration is not JSON")
    if not isinstance(fields, dict) or fields.keys() - {"patience_ms"}:
        raise Err("the configuration is an object with the one field \"patience_ms\"")
    patience = fields.get("patience_ms", 2_000)
    if type(patience) is not int or not 1 <= patience <= HOUR_MS:
        raise Err("field \"patience_ms\" must be a whole number from 1 to 3600000")
    return patience


class Pace:
    def decide(self, config: bytes, view: View) -> Decision:
        patience = patience_ms(config)
        offers = len(view.offers)
        if offers < max(view.quorum, 1):
            return Decision_Wait(IDLE_MS)
        if offers >= view.islands_live or view.waited_ms >= patience:
            return Decision_Close()
        return Decision_Wait(patience - view.waited_ms)
