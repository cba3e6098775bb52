"""How many tokens to assume when nobody says: the context of a config is a limit, not a length."""

from __future__ import annotations

from edgewise.adapters.config_reader import ConfigReader

DENSE = 256  # causal masks and rotation need the dense recursion, whose cost is cubic in the length
SYMMETRIC = 512  # the symmetric recursion costs the same at any length


def assume_tokens(config: ConfigReader, *names: str, context: int, most: int = DENSE) -> int:
    """The length asked for, else min(context, most), with a remark in either case that needs one."""
    context = int(config.number(*names, default=context)) if names else context
    if config.tokens is not None:
        if config.tokens > context:
            config.assume(f"tokens: {config.tokens} as asked, beyond the context of {context}")
        return config.tokens
    tokens = min(context, most)
    config.assume(f"tokens: {tokens}, the context is {context}; set --tokens")
    return tokens
