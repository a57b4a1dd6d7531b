"""A site's answers to a relay's announcements that come over its link.

The site answers as a client of the relay does over HTTPS (`AnsweringClient`): the same policy, the
same charges, the same journal. Its report is sealed to the relay before it goes into a message,
because the link stores messages.
"""

from sottovoce.core import printable_text
from sottovoce.core.errors import ConfigError, DeploymentError, PolicyError
from sottovoce.deployment.operators.answering import AnsweringClient
from sottovoce.deployment.operators.device import (
    FILE_NAME,
    AdmittedClient,
    DeviceFolder,
    enrollment_folder,
)
from sottovoce.deployment.site import Site
from sottovoce.deployment.site_witness import check_witnessed
from sottovoce.flower.node_messages import (
    ConfirmationRequest,
    ReportRequest,
    SiteConfirmation,
    SiteReport,
)
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.relay_intake import seal_to_relay

_LOG = printable_text.logger()


def answer_announced(
    request: ReportRequest | ConfirmationRequest, site: Site
) -> SiteReport | SiteConfirmation:
    """Return a site's report or confirmation, after its charge; or raise and release nothing.

    Args:
        request: The announcement, with its content or the digests of the list.
        site: Policy, ledger and data of the site.

    Raises:
        SottovoceError: The site is not enrolled, the announcement is not of its pinned operators,
            or the policy refuses it.
    """
    check_witnessed(site, request.receipt)
    admitted = _enrolled(site)
    client, asked = AnsweringClient(admitted, site), request.announced
    match request:
        case ReportRequest():
            answer = client.report(asked, request.content)
            keys, ann = admitted.device.operators.keys, Announcement.read(asked).ann
            return SiteReport(
                sealed=seal_to_relay(answer.report, keys, ann),
                certificate=admitted.certificate.to_bytes(),
            )
        case ConfirmationRequest():
            return SiteConfirmation(confirmation=client.confirmation(asked, request.leaves))


def _enrolled(site: Site) -> AdmittedClient:
    """Return the site as a client of the relay; raise PolicyError if it is none."""
    folder = enrollment_folder(site.ledger.parent)
    if not (folder / FILE_NAME).is_file():
        raise PolicyError(
            f"the site '{site.name}' is not enrolled with the relay's operators; enroll it with "
            "'sottovoce deploy enroll SITE_DIR', and ask both operators to admit it"
        )
    try:
        device = DeviceFolder.read(folder)
        if device.name != site.name:
            raise PolicyError(
                f"the site '{site.name}' is enrolled with the name of another one; it must enroll "
                "again"
            )
        return AdmittedClient(device)
    except ConfigError as error:  # Its text has paths and values of files of this machine.
        _LOG.error("%s", error)
        raise PolicyError(
            f"the files with which the site '{site.name}' is enrolled are not valid; see its log"
        ) from None
    except DeploymentError as error:
        raise PolicyError(str(error)) from None
