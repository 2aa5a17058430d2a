"""Pace in Python: close when every live island has answered, or `patience_ms` (default 2000) after the round had its quorum.

The pace role of wit/policy.wit, through componentize-py. A pace may be slow: it is asked a few times a round, and no tensor passes through it. It remembers
nothing from one call to the next, as the contract demands.
"""

import json

from componentize_py_types import Err
from wit_world.exports.pace import Decision, Decision_Close, Decision_Wait, View

# After which a host closes the round anyway.
BOUND_MS = 600_000


def patience_ms(config: bytes) -> int:
    try:
        fields = json.loads(config or b"{}")
    except ValueError:
        raise Err("the configuration is not JSON")
    if not isinstance(fields, dict) or fields.keys() - {"patience_ms"}:
        raise Err("the configuration is an object with the one field \"patience_ms\"")
    patience = fields.get("patience_ms", 2_000)
    if type(patience) is not int or not 1 <= patience <= BOUND_MS:
        raise Err("field \"patience_ms\" must be a whole number from 1 to 600000")
    return patience


class Pace:
    def decide(self, config: bytes, view: View) -> Decision:
        patience = patience_ms(config)
        if view.since_quorum_ms >= patience or all(island.answered for island in view.islands):
            return Decision_Close()
        return Decision_Wait(patience - view.since_quorum_ms)
