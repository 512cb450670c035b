"""Where a context ends and its continuation begins, in tokens: the harness' rule."""

from dataclasses import dataclass
from typing import Any

from dograph.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Encoder:
    """A Hugging Face tokenizer, and the token that stands for an empty context."""

    tokenizer: Any
    prefix_id: int

    @classmethod
    def of(cls, tokenizer: Any, end_of_text: int | None = None) -> "Encoder":
        """The prefix is the tokenizer's start, else its end, else the corpus' end of text.

        A tokenizer that names none of them may still have the token that commonly is one.
        """
        common = tokenizer.get_vocab().get(END_OF_TEXT)
        known = (tokenizer.bos_token_id, tokenizer.eos_token_id, end_of_text, common)
        prefix = next((token for token in known if token is not None), None)
        if prefix is None:
            raise ConfigError(
                "the tokenizer names no start and no end of text; set bos_token or eos_token in "
                "the model folder's tokenizer_config.json"
            )
        return cls(tokenizer, prefix)

    def encode(self, text: str, **options: bool) -> list[int]:
        if not options and text.startswith(self.tokenizer.decode(self.prefix_id)):
            options = {"add_special_tokens": False}  # the text brings its own start
        ids: list[int] = self.tokenizer.encode(text, **options)
        return ids

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both. White space that ends the context opens the continuation instead.

        The two are encoded together and cut where the context alone would end, so a tokenizer
        that merges across the seam gives the merged token to neither or to the continuation.
        """
        if not context:
            ids = self.encode(continuation, add_special_tokens=False)
            return ([self.prefix_id], ids) if ids[0] != self.prefix_id else (ids[:1], ids[1:])
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        first = self.encode(kept)
        whole = self.encode(kept + continuation)
        # Where all of it merged into the context, the continuation is encoded by itself.
        return first, whole[len(first) :] or self.encode(continuation, add_special_tokens=False)
