"""Low-rank adapters of a runtime: read from PEFT's folders, named, and part of a token's key.

It knows no model and no tree: models bind an adapter to their own weights
(models/layers/low_rank.py), and the tree sees only numbers in its keys.
"""

__all__ = ["lora", "peft_folder", "registry", "variants"]
