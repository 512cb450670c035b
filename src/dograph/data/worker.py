"""A process that encodes: one chunk in, its tokens out, until nobody is there to send another."""

import os
import traceback
from multiprocessing.connection import Connection

from dograph.data.chunks import Chunk
from dograph.data.encode import Encoded, Encoder


def serve(descriptor: int) -> None:
    """Answer on an open connection; the first message says how to encode."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker
    with Connection(descriptor) as parent:
        try:
            encoder = Encoder(parent.recv())
            while True:
                parent.send(_answer(encoder, parent.recv()))
        except (EOFError, OSError):  # the parent is gone, killed perhaps
            return


def _answer(encoder: Encoder, chunk: Chunk) -> Encoded | Exception:
    try:
        return encoder(chunk)
    except Exception as error:
        error.add_note(traceback.format_exc())  # the traceback itself does not travel
        return error
