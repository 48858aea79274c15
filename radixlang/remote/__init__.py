"""Programs on other servers: a Backend over an OpenAI-compatible endpoint.

It knows HTTP and the language's protocol, and no runtime of ours.
"""

from radixlang.remote.remote import Remote

__all__ = ["Remote"]
