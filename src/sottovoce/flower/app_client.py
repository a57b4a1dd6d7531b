"""The ClientApp `sottovoce.flower.app_client:app`, which answers orders and questions.

The workers of sites answer with the same handlers.
"""

from sottovoce.deployment.site_training import compute
from sottovoce.flower.client import client_app

app = client_app(compute)
