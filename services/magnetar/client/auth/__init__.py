"""Authentication of the client to brokers.

Client(url, auth=Token("eyJ..."))
Client(url, auth=TokenFile("/run/secrets/token"))
Client(url, auth=TokenSupplier(fetch_token))
Client(url, auth=Basic("user", "password"))
Client(url, auth=ClientCertificate("client.crt", "client.key"))
Client(url, auth=OAuth2("https://issuer", client_id="...", client_secret="..."))
"""

from magnetar.client.auth.api import Authentication, NoAuthentication
from magnetar.client.auth.basic import Basic
from magnetar.client.auth.certificate import ClientCertificate
from magnetar.client.auth.oauth2 import OAuth2
from magnetar.client.auth.token import Token, TokenFile, TokenSupplier

__all__ = [
    "Authentication",
    "Basic",
    "ClientCertificate",
    "NoAuthentication",
    "OAuth2",
    "Token",
    "TokenFile",
    "TokenSupplier",
]
