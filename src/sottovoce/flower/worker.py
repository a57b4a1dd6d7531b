"""`python -m sottovoce.flower.worker ADDRESS SITE_FILE` answers the tasks of a SuperNode."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from sottovoce.core.errors import LedgerError, LedgerLostError, SottovoceError
from sottovoce.core.printable_text import printable
from sottovoce.deployment.site import LEDGER_LOST, read_site
from sottovoce.deployment.site_training import compute
from sottovoce.flower.client import SITE_VARIABLE, client_app, site_of
from sottovoce.flower.site_worker import serve, with_installed_app

_REFUSAL_SECONDS = 2.0


def main(runtime_address: str, site_file: Path) -> None:
    """Answer the tasks of the SuperNode at `runtime_address` until SIGTERM or SIGINT.

    The site's file is read again for each task. Raises SottovoceError if it or the ledger cannot be
    used at the start, and LedgerLostError if the ledger is lost later.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # It logs every poll as INFO.
    site = read_site(site_file)
    site.open_ledger().close()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())

    def check_ledger() -> None:
        """End the worker if its site must stop, after time to send the refusal."""
        try:
            site.open_ledger().close()
        except LedgerLostError:
            stopped.wait(_REFUSAL_SECONDS)
            raise
        except LedgerError as error:  # Busy or not reachable for now; the next order tries again.
            logging.warning("%s", error)

    os.environ[SITE_VARIABLE] = str(site_file)
    site.note_start()
    serve(
        runtime_address,
        with_installed_app(client_app(compute), site_of),
        stopped,
        longest_seconds=site.longest_seconds,
        after_failure=check_ledger,
    )
    site.note_stop()


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except SottovoceError as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        sys.exit(LEDGER_LOST if isinstance(error, LedgerLostError) else 2)
