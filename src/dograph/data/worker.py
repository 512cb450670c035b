"""A process that encodes: one chunk in, its tokens out, until nobody is there to send another."""

import traceback

from dograph import processes
from dograph.data.chunks import Chunk
from dograph.data.encode import ChunkEncoder, Encoded


def serve(descriptor: int) -> None:
    """Answer on an open connection; the first message says how to encode."""
    encoder: ChunkEncoder | None = None

    def answer(message: object) -> Encoded | Exception | None:
        nonlocal encoder
        try:
            if isinstance(message, Chunk):
                assert encoder is not None
                return encoder(message)
            assert isinstance(message, tuple)
            encoder = ChunkEncoder(*message)
        except Exception as error:
            error.add_note(traceback.format_exc())  # the traceback itself does not travel
            return error
        return None

    processes.serve(descriptor, answer)
