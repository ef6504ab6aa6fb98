"""From a command line to an exit code: the user's mistakes are one readable line, never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from cyclopts import App, CoercionError, CycloptsError

from coba_rl.errors import CobaError
from coba_rl.packages import explain_missing

_MISTAKE, _INTERRUPTED, _NOT_READ = 2, 130, 1


def run_app(app: App, arguments: list[str] | None = None) -> int:
    """Run a command and say in one line what went wrong.

    Args:
        app: The command, or commands.
        arguments: Instead of those of the process.

    Returns:
        0; 2 for a mistake of the user's; 130 when interrupted; 1 when nobody reads the output any more.
    """
    _wait_passively()
    _write_any_text()
    app.suppress_keyboard_interrupt = False  # or cyclopts leaves without a word
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        print(end="", flush=True)
        return 0
    except CobaError as error:
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        return _fail(str(error), _MISTAKE)
    except CycloptsError as error:
        return _fail(_explain(error), _MISTAKE)
    except ModuleNotFoundError as error:
        return _fail(explain_missing(error), _MISTAKE)
    except BrokenPipeError:
        _let_go_of_output()
        return _NOT_READ
    except OSError as error:
        _let_go_of_output()
        return _fail(str(error), _MISTAKE)
    except KeyboardInterrupt as interrupt:  # its text, if any, says how to go on
        return _fail(f"interrupted. {interrupt}", _INTERRUPTED)


def _wait_passively() -> None:
    """Let idle OpenMP threads sleep instead of spin, unless `OMP_WAIT_POLICY` says otherwise.

    A small policy has many short parallel regions. Beside another process on the same cores, threads that spin at
    the end of each region keep the one that still works from running. Read when torch is loaded, so this comes first.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _explain(error: CycloptsError) -> str:
    """Cyclopts' message, but for options that no parameter declares, where it speaks of Python's types."""
    if not isinstance(error, CoercionError) or error.argument is None or "KEYWORD" not in error.argument.name:
        return str(error)
    if error.token is None:
        return (
            "An option has a dot too many: expected --section.key VALUE, with the table itself as the value."
        )
    return f"Unknown option {error.token.keyword}. A key of the configuration is written --section.key VALUE."


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        print(f"coba-rl: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def _let_go_of_output() -> None:
    """Throw away what standard output holds and cannot get rid of, lest Python complains at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_any_text() -> None:
    """A terminal that lacks a sign shows its code instead."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
