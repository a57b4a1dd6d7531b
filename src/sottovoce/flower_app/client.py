"""`sottovoce.flower_app.client:app`, the ClientApp; a site's own worker answers in the same way."""

from sottovoce.deployment.client import client_app
from sottovoce.runs.site_training import compute

app = client_app(compute)
