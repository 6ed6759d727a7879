# Ends in the way that argument number TORCHELASTIC_RESTART_COUNT names.
import os
import signal
import sys

ending = sys.argv[1 + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))]


class Grumpy(Exception):
    def __str__(self):
        raise ValueError("no text for you")


def inner(value):
    return 1 / value


def outer():
    try:
        inner(0)
    except ZeroDivisionError as error:
        raise RuntimeError("outer failed") from error


def deep(level):
    return deep(level - 1) if level else inner(0)


sys.stderr.write(f"before {ending}\n")
match ending:
    case "code":
        sys.exit(3)
    case "minus_one":
        sys.exit(-1)
    case "text":
        sys.exit("some text")
    case "object":
        sys.exit(("a", "tuple"))
    case "exception":
        inner(0)
    case "chained":
        outer()
    case "context":
        try:
            inner(0)
        finally:
            {}["missing"]
    case "group":
        raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
    case "notes":
        error = ValueError("with a note")
        error.add_note("the note")
        raise error
    case "grumpy":
        raise Grumpy
    case "deep":
        deep(50)
    case "recursion":
        deep(10**6)
    case "syntax":
        exec(compile("1 +", "made_up.py", "exec"))
    case "bad_module":
        import broken_sibling  # noqa: F401
    case "missing_module":
        import there_is_no_such_module  # noqa: F401
    case "hook":
        sys.excepthook = lambda kind, value, trace: sys.stderr.write(f"hook saw {kind.__name__}\n")
        inner(0)
    case "interrupt":
        raise KeyboardInterrupt
    case "os_exit":
        os._exit(7)
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    case "abort":
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    case "success":
        sys.exit(0)
