"""The `vidprep` command. Every child process imports this module (that is how `spawn` works), so what only the parent needs
is imported late.
"""

import atexit
import gc


def main() -> None:
    from vidprep.transcode.cli import main as command_line

    atexit.register(gc.freeze)  # or Python would look for garbage in all that was imported, for 50 ms
    command_line()


if __name__ == "__main__":
    main()
