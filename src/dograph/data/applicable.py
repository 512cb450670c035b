"""Options that would have no effect on these inputs are refused, not ignored."""

from dograph.data.input import Input
from dograph.data.options import PrepareOptions
from dograph.errors import ConfigError


def refuse_idle_options(options: PrepareOptions, inputs: list[Input]) -> None:
    """Name the first option given that cannot apply."""
    if options.noise and not any(entry.name in ("unigram", "bigram") for entry in inputs):
        raise ConfigError("--noise is for the inputs unigram and bigram; leave it out")
    if options.vocab_size is not None and options.tokenizer != "bpe":
        raise ConfigError(
            f"--vocab-size has no effect with --tokenizer {options.tokenizer}, whose vocabulary "
            "has its size; leave one of the two out"
        )
    tokens = [entry.name for entry in inputs if entry.is_tokens]
    if not tokens:
        if options.eot_id is not None:
            raise ConfigError(
                "--eot-id is for tokens made elsewhere; for text, name the token with --eot TOKEN"
            )
        return
    if options.keep < 1:
        raise ConfigError(
            f"--keep chooses documents by their text, and {tokens[0]} holds tokens; leave it out, "
            "or prepare the text that the tokens were made of"
        )
    given = {
        "--recipe": options.recipe is not None,
        "--source-field": options.source_field is not None,
        "--text-field": options.text_field != "text",
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{name} is for records of text, and {tokens[0]} holds tokens; leave it out, or "
                "name its source as NAME=INPUT"
            )
