"""Load the native library for this CPU, and give its functions with their types."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from radixlang.kernels.native.build import DISPATCH, BuildError, build

ISAS = ("portable", "avx2", "avx512", "amx")  # least first, as in dispatch.h
VARIABLE = "RADIXLANG_CPU_ISA"
Pointer = ctypes.c_void_p
Int = ctypes.c_int
Long = ctypes.c_int64
Float = ctypes.c_float
Bits = ctypes.c_uint64
CType: TypeAlias = "type[ctypes._CDataType]"  # c_int, a pointer, a structure
_NO_MEMORY = -1  # of Status in guard.h
log = logging.getLogger("radixlang.kernels")
_loaded: dict[tuple[Path, str], Library] = {}


class Library:
    """A loaded library; its functions are called without the interpreter's lock."""

    def __init__(self, path: Path, isa: str) -> None:
        self.path = path
        self._isa = isa
        self._file = ctypes.CDLL(str(path))
        atexit.register(self.action("rl_shutdown"))

    def isa(self) -> str:
        """The instruction set it was compiled for, one of ISAS."""
        return self._isa

    def function(self, name: str, result: CType | None, *arguments: CType) -> Callable[..., Any]:
        """The C function of a name; `result` and `arguments` are ctypes, None for void.

        Raises AttributeError where the library has none of that name.
        """
        found = self._file[name]
        found.restype, found.argtypes = result, arguments
        return found

    def action(self, name: str, *arguments: CType) -> Callable[..., int]:
        """The C function of a name that can fail; it returns a number from 0 on.

        A call raises MemoryError where there is none for its intermediate values, whichever thread
        met it, and RuntimeError where it fails in another way. The next call is as good as ever.
        """
        found = self.function(name, Int, *arguments)
        found.errcheck = _checked  # type: ignore[attr-defined]
        return found


def _checked(status: int, function: Callable[..., int], _: tuple[object, ...]) -> int:
    name = getattr(function, "__name__", "the library")
    if status == _NO_MEMORY:
        raise MemoryError(f"there is no memory for the intermediate values of {name}")
    if status < 0:
        raise RuntimeError(f"{name} failed")
    return status


def load(folder: Path, isa: str | None = None) -> Library | None:
    """The library of the greatest set that this CPU has, kept in `folder`; None without a compiler.

    $RADIXLANG_CPU_ISA caps the set; `isa` asks for one set, and None comes back where the CPU has
    it not. Where a set cannot be compiled, the next lower one is taken and a warning says so.
    Raises ValueError where the variable or `isa` names no set.
    """
    most = _most(folder)
    if most is None:
        return None
    if isa is not None:
        wanted = [isa] if _index(isa, "isa") <= most else []
    else:
        cap = os.environ.get(VARIABLE)
        most = min(most, _index(cap, VARIABLE)) if cap else most
        wanted = list(ISAS[most::-1])
    return next(filter(None, (_load(folder, name) for name in wanted)), None)


def isas(folder: Path) -> list[str]:
    """Every set that this CPU has, least first; empty without a compiler."""
    most = _most(folder)
    return [] if most is None else list(ISAS[: most + 1])


def _index(isa: str, where: str) -> int:
    if isa not in ISAS:
        raise ValueError(f"{where}={isa!r} is no instruction set; use one of {', '.join(ISAS)}")
    return ISAS.index(isa)


def _most(folder: Path) -> int | None:
    """Index of the greatest set of this CPU, as its own library tells."""
    try:
        ask = ctypes.CDLL(str(build(folder, DISPATCH))).rl_cpu_isa
    except (BuildError, OSError) as error:
        log.warning("the native CPU library is not used: %s", error)
        return None
    return int(ask())


def _load(folder: Path, isa: str) -> Library | None:
    key = (folder, isa)
    if key not in _loaded:
        try:
            _loaded[key] = Library(build(folder, isa), isa)
        except (BuildError, OSError) as error:
            log.warning("the native CPU library for %s is not used: %s", isa, error)
            return None
    return _loaded[key]
