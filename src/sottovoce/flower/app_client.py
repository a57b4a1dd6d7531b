"""The ClientApp `sottovoce.flower.app_client:app`; workers of sites answer in the same way."""

from sottovoce.deployment.site_training import compute
from sottovoce.flower.client import client_app

app = client_app(compute)
