"""The directory of checkpoints: one folder for each tag, and the file ``latest``; each appears whole or not at all.

A save writes to a temporary folder, ``.TAG.saving-ID``, and flushes every file to the drive. Then it renames the folder
to the tag and replaces ``latest``. If it dies before the rename, only the temporary folder is left. If the tag exists,
the two folders exchange their names in one system call, and the old one is deleted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from zerobench.engine.checkpoint.deepspeed.files import is_deepspeed
from zerobench.engine.errors import CheckpointError

LATEST = "latest"
#: Of DeepSpeed's conversion to a universal checkpoint.
_LATEST_UNIVERSAL = "latest_universal"
_SAVING, _REPLACED = ".saving-", ".replaced-"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Of renameat2(2): paths are relative to the working directory; exchange the two names.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def failed(what: str) -> Iterator[None]:
    """Turn an error of the operating system into a CheckpointError that names the operation."""
    try:
        yield
    except OSError as error:
        hint = "; free some space, lift the limit, or choose another directory" if error.errno in _NO_ROOM else ""
        link = "it is a symbolic link, which is not followed" if error.errno == errno.ELOOP else error.strerror
        raise CheckpointError(f"could not {what}: {link}{hint}") from error


def checked_tag(tag: object) -> str:
    """The tag as a string.

    Raises:
        CheckpointError: it is not a plain file name.
    """
    text = str(tag)
    if not text or text.startswith(".") or "/" in text or not text.isprintable() or text == LATEST:
        raise CheckpointError(
            f"a tag must be a file name without '/' that does not start with '.' and is not {LATEST!r}, got {text!r}"
        )
    return text


def begin(directory: Path, tag: str) -> Path:
    """Make the temporary folder of a save."""
    folder = directory / f".{tag}{_SAVING}{uuid.uuid4().hex[:12]}"
    with failed(f"make a folder in {str(directory)!r}"):
        directory.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    return folder


def publish(folder: Path, tag: str) -> Path:
    """Give a complete temporary folder its name, in place of an older checkpoint of this tag."""
    final = folder.parent / tag
    with failed(f"rename {folder.name!r} to {tag!r} in {str(folder.parent)!r}"):
        flush(folder)
        if not _renamed(folder, final):
            _exchange(folder, final)
        flush(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)  # the older checkpoint
    return final


def _renamed(folder: Path, final: Path) -> bool:
    """Rename the folder, unless there is one of this name with something in it."""
    try:
        folder.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _exchange(folder: Path, final: Path) -> None:
    """Exchange the names of two folders at once, or one after another if the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(_AT_FDCWD, os.fsencode(folder), _AT_FDCWD, os.fsencode(final), _RENAME_EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    aside = folder.with_name(folder.name.replace(_SAVING, _REPLACED))
    final.rename(aside)
    folder.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def discard(folder: Path) -> None:
    """Delete the temporary folder of a save that failed."""
    shutil.rmtree(folder, ignore_errors=True)


def leftovers(directory: Path) -> list[str]:
    """The names of temporary folders: of saves that were killed, or that are running."""
    with suppress(OSError):
        names = sorted(each.name for each in directory.iterdir())
        return [name for name in names if name.startswith(".") and (_SAVING in name or _REPLACED in name)]
    return []


def write_new(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the drive."""
    with failed(f"write {path.name!r} in {str(path.parent)!r}"), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flush(folder: Path) -> None:
    """Wait until the names in a folder are on the drive."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_latest(directory: Path, tag: str) -> None:
    """Make ``tag`` the latest: a line with the tag, and one with its checksum in blanks.

    Scripts read the tag as DeepSpeed does, by ``read().strip()``.
    """
    _replace_latest(directory, f"{tag}\n{_blank(_check(tag))}\n")


def write_plain_latest(directory: Path, tag: str) -> None:
    """Make ``tag`` the latest as DeepSpeed does: the tag alone."""
    _replace_latest(directory, tag)


def _replace_latest(directory: Path, text: str) -> None:
    temporary = directory / f".{LATEST}{_SAVING}{uuid.uuid4().hex[:12]}"
    try:
        write_new(temporary, text.encode())
        with failed(f"replace {LATEST!r} in {str(directory)!r}"):
            temporary.replace(directory / LATEST)
            flush(directory)
    finally:
        temporary.unlink(missing_ok=True)


def read_latest(directory: Path) -> str | None:
    """The tag in ``latest``, or in the file of DeepSpeed's converter; None if there is neither.

    Those of DeepSpeed, and those that a user writes, have no checksum.

    Raises:
        CheckpointError: it cannot be read, its checksum is not that of the tag, or it may have been cut off.
    """
    tags = (_tag_in(directory / name) for name in (LATEST, _LATEST_UNIVERSAL))
    return next((tag for tag in tags if tag is not None), None)


def _tag_in(path: Path) -> str | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"could not read {str(path)!r}: {error.strerror}") from error
    tag, newline, check = text.decode(errors="replace").partition("\n")
    if not check and _is_tag_alone(path, tag.strip(), whole=bool(newline)):
        return checked_tag(tag.strip())
    if check not in (f"{_blank(_check(tag))}\n", f"{_check(tag)}\n"):  # older checkpoints have hexadecimal digits
        raise CheckpointError(
            f"{str(path)!r} is damaged or was written by another program: it does not end with the checksum of its tag "
            f"{tag!r}; pass the tag to load"
        )
    return checked_tag(tag)


def _is_tag_alone(path: Path, tag: str, whole: bool) -> bool:
    """Whether a file of no checksum is DeepSpeed's or a user's, and not what is left of one that was cut off.

    Args:
        path: the file.
        tag: its text.
        whole: a newline ends the line, so that nothing of the tag is missing.

    Raises:
        CheckpointError: other tags begin with this one, so that either may be meant.
    """
    folder = path.parent / tag
    if not tag.isprintable() or tag != folder.name or not os.path.isdir(folder):  # noqa: PTH112  # raises if it is long
        return False
    if whole or is_deepspeed(folder):
        return True
    longer = sorted(each.name for each in path.parent.iterdir() if each.name.startswith(tag) and each.name != tag)
    if longer:
        raise CheckpointError(
            f"{str(path)!r} has {tag!r} without a checksum, and may have been cut off, as {longer[0]!r} begins alike; "
            "pass the tag to load, or end the line with a newline"
        )
    return True


def _check(tag: str) -> str:
    return xxhash.xxh3_64_hexdigest(tag.encode(errors="replace"))


def _blank(digits: str) -> str:
    """Hexadecimal digits as one space or tab for each bit."""
    return f"{int(digits, 16):064b}".translate({ord("0"): " ", ord("1"): "\t"})


def folder_of(directory: Path, tag: str) -> Path:
    """The folder of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is a symbolic link out of the directory.
    """
    folder = directory / checked_tag(tag)
    with failed(f"open the checkpoint {str(folder)!r}"):
        if not folder.is_dir():
            tags = [each.name for each in directory.iterdir() if each.is_dir()] if directory.is_dir() else []
            known = ", ".join(sorted(name for name in tags if not name.startswith("."))) or "none"
            raise CheckpointError(f"{str(directory)!r} has no checkpoint {tag!r} (it has: {known})")
        for each in folder.iterdir():
            each.lstat()
    if folder.resolve().parent != directory.resolve():
        raise CheckpointError(f"{str(folder)!r} is a symbolic link out of the directory; load from {folder.resolve()}")
    return folder


def check_size(path: Path, size: int) -> None:
    """Check that a file of a checkpoint is there and has its size.

    Raises:
        CheckpointError: it is not a plain file of ``size`` bytes.
    """
    with failed(f"find {path.name!r}, a file of the checkpoint {str(path.parent)!r}"):
        found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        given = f"has {found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "is not a plain file"
        raise CheckpointError(
            f"{path.name!r} in {str(path.parent)!r} {given}, and the saved file had {size} bytes; load another "
            "tag, or a whole copy"
        )
