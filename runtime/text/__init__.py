"""Text to tokens and back: tokenizer, chat template, healing, stop strings.

It knows strings and token ids. It knows no tensor and no tree.
"""

__all__ = [
    "byte_alphabet",
    "chat_template",
    "option_tokens",
    "single_tokens",
    "stop_pattern",
    "stop_strings",
    "token_healing",
    "tokenizer",
]
