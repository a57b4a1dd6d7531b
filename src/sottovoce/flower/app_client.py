"""`sottovoce.flower.app_client:app`, the ClientApp; a site's own worker answers in the same way."""

from sottovoce.deployment.site_training import compute
from sottovoce.flower.client import client_app

app = client_app(compute)
