"""Compile the native library into a folder of the user's, once for each instruction set.

A library is a file of its own for every set, so no code of a greater one is in a lesser. Files are
named by what they are made from; one that is damaged, or that somebody else could have changed,
is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from radixlang.kernels.native.ownership import others_write

SOURCES = Path(__file__).resolve().parent / "cpp"
DISPATCH = "dispatch"  # the library that tells which set to load
_X86: dict[str, tuple[str, ...]] = {
    DISPATCH: (),
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
}
_X86["avx512"] = (
    *_X86["avx2"],
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
)
_X86["amx"] = (*_X86["avx512"], "-mamx-tile", "-mamx-int8")
_PLAIN: dict[str, tuple[str, ...]] = {DISPATCH: (), "portable": ()}
# no contraction: a fused multiply-add is where the source writes one; symbols bind inside the file
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
LINK = ("-shared", "-pthread", "-Wl,-Bsymbolic")
_GNU = ("-fno-gnu-unique",)  # else two loaded sets would share statics
_COMPILERS = ("g++", "clang++", "c++")
_LIMIT_S = 300
_UNUSED_S = 30 * 24 * 3600.0  # after which a library of other sources is deleted
log = logging.getLogger("radixlang.kernels")


class BuildError(RuntimeError):
    """The library of a set cannot be made here; the text says why."""


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, or one on the path."""
    return os.environ.get("CXX") or next(filter(None, map(shutil.which, _COMPILERS)), None)


def flags_of(isa: str) -> tuple[str, ...]:
    """What the compiler is told for a set; raises BuildError where the set is of another CPU."""
    known = _X86 if platform.machine().lower() in ("x86_64", "amd64") else _PLAIN
    if isa not in known:
        raise BuildError(f"{platform.machine()} has no instruction set {isa!r}")
    return known[isa]


def sources_of(isa: str) -> list[Path]:
    """The files that one library is compiled from."""
    dispatch = SOURCES / f"{DISPATCH}.cpp"
    return [dispatch] if isa == DISPATCH else sorted(set(SOURCES.glob("*.cpp")) - {dispatch})


def library_path(folder: Path, isa: str, compiler: str) -> Path:
    """Where the library of a set is, or will be: sources, compiler and flags name it."""
    state = hashlib.blake2b(digest_size=10)
    texts = [*FLAGS, *LINK, *flags_of(isa), platform.machine(), _identity(compiler)]
    for path in [*sources_of(isa), *sorted(SOURCES.glob("*.h"))]:
        texts += [path.name, path.read_text("utf-8")]
    for text in texts:
        state.update(f"{len(text)} {text}".encode())
    return folder / f"{isa}-{state.hexdigest()}.so"


def build(folder: Path, isa: str) -> Path:
    """The library of a set in `folder`, compiled now unless it is there and sound.

    Raises BuildError without a compiler, where it fails, or where the folder is somebody else's.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("there is no C++ compiler; install g++ or clang++, or set CXX")
    try:
        path = library_path(folder, isa, compiler)
        _own(folder)
        if not _is_sound(path):
            with _locked(folder):
                if not _is_sound(path):  # another process may have made it meanwhile
                    _compile(path, isa, compiler)
                    _drop_unused(folder)
        with contextlib.suppress(OSError):  # a folder that may only be read serves as well
            os.utime(_checksum_path(path))
    except OSError as error:
        raise BuildError(f"the native library cannot be kept in {folder}: {error}") from error
    return path


def _identity(compiler: str) -> str:
    """What changes when the compiler does; asking it for its version would take longer."""
    words = compiler.split()  # CXX may hold options
    found = shutil.which(words[0])
    if found is None:
        raise BuildError(f"there is no C++ compiler {words[0]!r}; see CXX")
    about = os.stat(found)
    return f"{compiler} {os.path.realpath(found)} {about.st_size} {about.st_mtime_ns}"


def _own(folder: Path) -> None:
    """Make the folder, or see that it is the user's alone to write in.

    One that others could write in is emptied of libraries: they may have been there.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = folder.stat()
    if about.st_uid != os.geteuid():
        raise BuildError(f"{folder} belongs to another user; set RADIXLANG_HOME to one of yours")
    if others_write(about):
        log.warning("%s could be written by others; its libraries are made again", folder)
        for path in [*folder.glob("*.so"), *folder.glob("*.sha256")]:
            path.unlink()
        folder.chmod(0o700)


def _checksum_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_sound(path: Path) -> bool:
    """Whether the library is there, the user's alone, and what was compiled."""
    wrong = _what_is_wrong(path)
    if wrong:
        log.warning("%s %s; it is made again", path, wrong)
    return wrong == ""


def _what_is_wrong(path: Path) -> str | None:
    """Empty where nothing is, None where the library is not there."""
    for file in (path, _checksum_path(path)):
        try:
            about = file.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(about.st_mode):
            return "is no plain file"
        if about.st_uid != os.geteuid():
            return "belongs to another user"
        if others_write(about):
            return "could be written by others"
    is_same = _checksum_path(path).read_text("ascii", "replace") == _checksum(path)
    return "" if is_same else "is damaged"


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process builds at a time; the lock ends with the process that holds it."""
    import fcntl  # not on Windows, where nothing is built

    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(path: Path, isa: str, compiler: str) -> None:
    """Compile every source, two at a time, link them, and put the library in its place."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as name:
        scratch = Path(name)
        gnu = _GNU if _is_gnu(compiler) else ()
        start = [*compiler.split(), *FLAGS, *gnu, *flags_of(isa)]
        objects = [scratch / f"{source.stem}.o" for source in sources_of(isa)]
        _run_all(
            [[*start, "-c", str(source), "-o", str(target)]
             for source, target in zip(sources_of(isa), objects, strict=True)]
        )  # fmt: skip
        made = scratch / path.name
        _run_all([[*compiler.split(), *LINK, *map(str, objects), "-o", str(made)]])
        made.chmod(0o700)
        told = _checksum_path(made)
        told.write_text(_checksum(made), "ascii")
        told.chmod(0o600)
        os.replace(told, _checksum_path(path))
        os.replace(made, path)


def _drop_unused(folder: Path) -> None:
    """Delete libraries that no process has asked for in a month: of older sources, most likely."""
    for told in folder.glob("*-*.sha256"):  # written to whenever its library is asked for
        if told.stat().st_mtime < time.time() - _UNUSED_S:
            told.with_suffix(".so").unlink(missing_ok=True)
            told.unlink()


def _is_gnu(compiler: str) -> bool:
    found = shutil.which(compiler.split()[0]) or ""
    return "clang" not in os.path.realpath(found) and os.uname().sysname == "Linux"


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run commands, two at a time; raises BuildError with what the first that fails has said."""
    waiting, running = list(commands), list[tuple[Sequence[str], "subprocess.Popen[str]"]]()
    try:
        while waiting or running:
            while waiting and len(running) < 2:
                command = waiting.pop(0)
                running.append((command, _start(command)))
            command, process = running[0]
            said, _ = process.communicate(timeout=_LIMIT_S)
            running.pop(0)
            if process.returncode:
                raise BuildError(f"{' '.join(command)} failed:\n{said[-4000:]}")
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"the compiler took longer than {_LIMIT_S} s") from error
    finally:
        for _, process in running:
            process.kill()
            process.wait()


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    )  # fmt: skip
