"""The native CPU library: C++ built at first use, called on raw pointers through ctypes.

`build` compiles, `library` loads; every other module here is the Python side of some C functions.
What a row computes has the same bits in any company, on any number of threads and on any CPU.
"""
