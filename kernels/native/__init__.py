"""The native CPU library: C++ built at first use, called on raw pointers through ctypes.

`build` compiles `cpp/`, `library` loads it; every other module is the Python side of C functions.
What a row computes has the same bits in any company, on any number of threads and on any CPU.
"""
