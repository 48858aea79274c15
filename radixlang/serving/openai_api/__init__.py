"""OpenAI's API: bodies of requests, what they ask of a backend, and bodies of replies.

It knows nothing of sockets, keys or limits.
"""
