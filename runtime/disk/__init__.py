"""The disk tier: blocks of keys and values in a folder, written when evicted and at close.

It knows the tree and the cache, and nothing of requests.
"""
