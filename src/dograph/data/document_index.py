"""The document index of a stratum, written without ever holding it in memory."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dograph.data.tokens import DOCUMENT_DTYPE


def write_document_index(path: Path, blocks: Iterable[np.ndarray], num_documents: int) -> None:
    """Write an .npy of DOCUMENT_DTYPE from blocks that have its fields, and perhaps more.

    Plain writes, not a memory map: on a full disk they fail with an error, not with a signal.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(DOCUMENT_DTYPE),
        "fortran_order": False,
        "shape": (num_documents,),
    }
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            documents = np.empty(len(block), DOCUMENT_DTYPE)
            for name in DOCUMENT_DTYPE.names or ():
                documents[name] = block[name]
            file.write(documents.tobytes())
