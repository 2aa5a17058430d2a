"""What schemathesis must be told to fuzz `tombolo serve`: a component is sent as the bytes that were drawn for it."""

import schemathesis


@schemathesis.serializer("application/wasm")
def component(_context, value):
    return value if isinstance(value, bytes) else str(value).encode()
